"""The trust report: every number against its metric, plain words about max-softmax, stated answers at the edges."""

import html
import json
import re
from functools import partial

import jaxtyping
import numpy as np
import pytest
import torch
from scipy import stats

from calibrant.cli import main
from calibrant.evaluation.ood import outlier_records
from calibrant.evaluation.trust_report import trust_report
from calibrant.io.files import read
from calibrant.io.sealed import load
from calibrant.metrics.curves import trust_histogram
from calibrant.metrics.evidence import compare
from calibrant.predictions.predictions import Predictions
from calibrant.records import Curve, Record, to_json
from calibrant.registry import METRICS
from calibrant.report.trust import render
from calibrant.report.trust_table import COLUMNS
from calibrant.trust.tcp import Tcp

HOSTILE = "<script>$x_1$</script>"
N = 600
# the fixture of ten rows whose answers are known
C = [0.95, 0.9, 0.8, 0.75, 0.7, 0.6, 0.55, 0.48, 0.42, 0.3]
A = [True, False, True, True, True, False, True, False, True, False]


def rows(n=N, seed=0, k=4):
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=g)
    return Predictions(logits=1.5 * logits, labels=torch.multinomial(logits.softmax(1), 1, generator=g).squeeze(1))


def judged(seed=0):
    p = rows(seed=seed)
    g = torch.Generator().manual_seed(seed + 1)
    worse = (p.confidence + 0.3 * torch.randn(N, generator=g)).clamp(0, 1)
    knows = (0.4 * p.confidence + 0.3 * p.correct + 0.3 * torch.rand(N, generator=g)).clamp(0, 1)
    confidences = {"worse": worse, "knows": knows, "curved": p.confidence**2}
    return {"mcp": p} | {name: Predictions(confidence=c, correct=p.correct) for name, c in confidences.items()}


SWEEP = Curve(
    "any", {"alpha": np.arange(1, 5.0), "loss": np.ones(4), "tpr": np.full(4, 0.9), "tnr": np.full(4, 0.3)}, N
)


@pytest.fixture(scope="module")
def report():
    return trust_report(
        judged(),
        distrust_below={"worse": 0.25},
        resamples=40,
        shifted={"fog": judged(5)},
        sweep=SWEEP,
        model="net",
        dataset="toy",
    )


@pytest.fixture(scope="module")
def page(report):
    return render(report.findings)


def found(report, metric, method, where="all"):
    return next(
        r
        for r in report.records
        if (r.metric, r.method, r.where) == (metric, method, where) and "sign" not in r.settings
    )


def visible(page):
    page = re.sub(r"<(style|script)[^>]*>.*?</\1>", " ", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).replace("\u00a0", " ").split())


def test_every_predictor_has_every_number_and_it_is_the_metrics_own(report):
    for where, seed in (("all", 0), ("shift: fog", 5)):
        for name, p in judged(seed).items():
            for metric in (*COLUMNS, "augrc", "separability_kl", "separability_bhattacharyya"):
                options = {"threshold": 0.25} if (metric, name) == ("tnr", "worse") else {}
                views = (p.correct,) if metric == "accuracy" else (p.confidence, p.correct)
                value = METRICS[metric](*views, **options)
                record = found(report, metric, name, where)
                assert record.value == pytest.approx(value, nan_ok=True), (metric, name)
                assert (record.model, record.dataset) == ("net", "toy")
                if not metric.startswith("separability"):
                    assert record.low <= record.value <= record.high
                    assert record.level == 0.9


def test_the_difference_to_the_baseline_is_paired_and_its_intervals_hold_together(report):
    for name in ("worse", "knows", "curved"):
        record = found(report, "failure_auroc_change", name)
        apart = found(report, "failure_auroc", name).value - found(report, "failure_auroc", "mcp").value
        assert record.value == pytest.approx(apart)
        assert record.level == pytest.approx(1 - 0.1 / 3)
        assert record.settings == {"against": "mcp", "together": 0.9}
    assert found(report, "failure_auroc_change", "knows").low > 0
    assert found(report, "failure_auroc_change", "worse").high < 0
    curved = found(report, "failure_auroc_change", "curved")
    assert curved.value == curved.low == curved.high == 0


def test_the_published_sign_of_aupr_error_stands_beside_the_right_one():
    p = Predictions(confidence=C, correct=A)
    records = [r for r in trust_report({"mcp": p}, resamples=20).records if r.metric == "aupr_error"]
    errors_by_height = [1 / 2, 2 / 6, 3 / 8, 4 / 10]
    assert [dict(r.settings) for r in records] == [{}, {"sign": "wrong"}]
    assert records[1].value == pytest.approx(np.mean(errors_by_height))
    errors_by_depth = [1 / 1, 2 / 3, 3 / 5, 4 / 9]
    assert records[0].value == pytest.approx(np.mean(errors_by_depth))


def test_the_share_trusted_has_the_exact_interval_of_its_own_side():
    p = Predictions(confidence=[0.9] * 20, correct=[True] * 15 + [False] * 5)
    told = trust_report({"mcp": p}, resamples=20)
    tpr, tnr = found(told, "tpr", "mcp"), found(told, "tnr", "mcp")
    assert (tpr.value, tpr.n, tnr.value, tnr.n) == (1.0, 15, 0.0, 5)
    assert tpr.low == pytest.approx(0.05 ** (1 / 15))
    assert tnr.high == pytest.approx(1 - 0.05 ** (1 / 5))


def test_the_histogram_counts_each_side_of_the_threshold():
    curve = trust_histogram(Predictions(confidence=C, correct=A))
    slow = {side: [0] * 20 for side in ("tp", "fp", "tn", "fn")}
    for c, a in zip(C, A, strict=True):
        side = ("tp" if a else "fp") if c > 0.5 else ("fn" if a else "tn")
        place = next(i for i in range(20) if c <= (i + 1) / 20 + 1e-9)
        slow[side][place] += 1
    assert {side: curve[side].tolist() for side in slow} == slow
    assert curve["right_share"].sum() == pytest.approx(1)
    assert (6 * curve["right_share"]).tolist() == pytest.approx((curve["tp"] + curve["fn"]).tolist())
    assert np.isnan(trust_histogram(Predictions(confidence=[0.5], correct=[True]))["wrong_share"]).all()


def test_a_better_predictor_is_named_with_its_difference(report):
    auroc = {name: 100 * found(report, "failure_auroc", name).value for name in ("mcp", "knows", "worse")}
    start = (
        f"knows tells right from wrong better than max-softmax: AUROC {auroc['knows']:.1f} against {auroc['mcp']:.1f}"
    )
    assert report.verdict.startswith(start)
    assert f"worse {auroc['worse']:.1f} (-" in report.verdict
    assert "curved ranks as it does" in report.verdict
    share = 100 * found(report, "tpr", "mcp").value
    assert f"Trusting above 0.5: mcp trusts {share:.1f} % of the right answers" in report.verdict
    assert report.findings.advice[0].startswith("Rank by knows")


@pytest.mark.parametrize(("right", "wrong", "told"), [(381, 19, "19 of 400"), (5, 395, "5 of 400"), (20, 20, "")])
def test_with_few_rows_of_a_side_no_difference_is_called_one(right, wrong, told):
    correct = [True] * right + [False] * wrong
    knows = Predictions(confidence=[float(a) for a in correct], correct=correct)
    base = Predictions(confidence=np.linspace(0, 1, right + wrong), correct=correct)
    made = trust_report({"mcp": base, "knows": knows}, resamples=20, shifted={"fog": {"mcp": base, "knows": knows}})
    change = found(made, "failure_auroc_change", "knows")
    assert change.value == pytest.approx(1)
    if not told:
        assert (change.low, change.p, made.findings.notes) == (1.0, 0.0, ())
        assert made.verdict.startswith("knows tells right from wrong better than max-softmax")
        return
    side = "wrong" if wrong < right else "right"
    note = f"{told} answers are {side}: too few to say whether a predictor ranks better; it takes 20 of either kind."
    assert (change.low, change.high, change.p) == (None, None, None)
    assert made.findings.notes == (note, f"{note} (shift: fog)")
    assert made.verdict.startswith(
        "Too few rows to say whether any predictor ranks better than max-softmax (AUROC 0.0)"
    )
    assert made.findings.advice[0] == "Judge more rows before choosing; until then rank by max-softmax."
    assert "hold together" not in str(made)


def test_the_interval_of_a_difference_is_that_of_the_placements():
    given = judged()
    change = found(trust_report(given, resamples=20), "failure_auroc_change", "knows")
    right = given["mcp"].correct
    sets = [(given[name].confidence[right], given[name].confidence[~right]) for name in ("knows", "mcp")]
    above = [(up[:, None] > down).double() + (up[:, None] == down).double() / 2 for up, down in sets]
    gap = above[0] - above[1]
    error = float((gap.mean(1).var() / gap.shape[0] + gap.mean(0).var() / gap.shape[1]).sqrt())
    half = stats.t.ppf(1 - 0.1 / 3 / 2, min(gap.shape) - 1) * error
    assert (change.low, change.high) == pytest.approx((float(gap.mean()) - half, float(gap.mean()) + half))
    assert change.p == pytest.approx(2 * stats.t.sf(abs(float(gap.mean())) / error, min(gap.shape) - 1))


def test_rows_with_weights_are_redrawn():
    given = {
        name: Predictions(confidence=p.confidence, correct=p.correct, weights=torch.arange(N) % 3 + 1.0)
        for name, p in judged().items()
    }
    change = found(trust_report(given, resamples=40, seed=2), "failure_auroc_change", "knows")
    slow = compare("failure_auroc", given["knows"], given["mcp"], level=1 - 0.1 / 3, resamples=40, seed=2)
    assert (change.value, change.low, change.high) == pytest.approx((slow.difference, slow.low, slow.high))


def test_a_predictor_that_judged_the_rows_says_where_distrust_begins():
    p = rows(80)
    tcp = Tcp.fit(p.logits, p.labels)
    given = {"mcp": p, "tcp": tcp.judge(p)}
    told = trust_report(given, resamples=20, shifted={"fog": given})
    for where in ("all", "shift: fog"):
        assert found(told, "tnr", "tcp", where).settings == {"threshold": 0.25}
        assert found(told, "tpr", "tcp", where).settings == found(told, "tnr", "mcp").settings == {"threshold": 0.5}
    assert found(told, "tnr", "tcp").value == METRICS["tnr"](given["tcp"].confidence, p.correct, threshold=0.25)
    named = trust_report(given, distrust_below={"tcp": 0.4}, resamples=20)
    assert found(named, "tnr", "tcp").settings == {"threshold": 0.4}


@pytest.mark.parametrize("letter", ["W", "\u6f22"])
def test_a_long_name_is_shortened_in_figures_and_on_the_terminal_and_whole_in_the_page(letter):
    p = rows(80)
    names = [f"{letter * 150}{end}" for end in ("one", "two")]
    told = trust_report(
        {"mcp": p} | dict.fromkeys(names, Predictions(confidence=C * 8, correct=p.correct)), resamples=20
    )
    page = render(told.findings)  # a warning of matplotlib is an error here
    figures = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.S))
    for name in names:
        assert name in visible(page)
        assert name not in figures
        assert f"\u2026{name[-8:]}" in figures
        assert re.search(rf"\u2026{name[-13:]} +\d.* [+-]\d+\.\d\d", str(told))


def test_where_none_is_better_the_verdict_says_so_plainly():
    found_ = judged()
    told = trust_report({name: found_[name] for name in ("mcp", "worse", "curved")}, resamples=40)
    assert told.verdict.startswith("No predictor tells right from wrong better than max-softmax (AUROC ")
    assert "curved ranks as it does." in told.verdict
    assert told.findings.advice[0].startswith("Rank by max-softmax")
    own = trust_report({"mine": found_["mcp"], "worse": found_["worse"]}, baseline="mine", resamples=20)
    assert "better than mine (AUROC" in own.verdict
    alone = trust_report({"mcp": found_["mcp"]}, resamples=20)
    assert alone.verdict.startswith("Max-softmax tells right from wrong with AUROC ")


def of(confidence, correct):
    return {
        "mcp": Predictions(confidence=confidence, correct=correct),
        "other": Predictions(confidence=[1 - c for c in confidence], correct=correct),
    }


EDGES = {
    "all right": (of([0.9, 0.8, 0.7] * 10, [True] * 30), "Every answer is right: there is nothing to rank."),
    "all wrong": (of([0.9, 0.8, 0.7] * 10, [False] * 30), "Every answer is wrong: there is nothing to rank."),
    "one row": (of([0.9], [True]), "One row says nothing: there is nothing to rank."),
    "constant": (
        of([0.7] * 60, [True, True, False] * 20),
        "No predictor tells right from wrong better than max-softmax",
    ),
    "one wrong": (of(np.linspace(0, 1, 30).tolist(), [False] + [True] * 29), "Too few rows to say whether any"),
    "one right": (of(np.linspace(0, 1, 30).tolist(), [False] * 29 + [True]), "Too few rows to say whether any"),
    "two values": (of([0.0] * 20 + [1.0] * 20, [False, True] * 20), "No predictor tells right from wrong"),
    "opposite": (of([0.0] * 20 + [1.0] * 20, [True] * 20 + [False] * 20), "other tells right from wrong better"),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_are_stated_in_words_and_never_as_nan(name, tmp_path):
    given, start = EDGES[name]
    told = trust_report(given, resamples=20, shifted={"same": given})
    assert told.verdict.startswith(start)
    told.save(tmp_path / "page.html")
    told.save(tmp_path / "all.json")
    json.loads((tmp_path / "all.json").read_text())
    page = visible((tmp_path / "page.html").read_text())
    for said in (page, str(told), told.verdict, *told.findings.advice, *told.findings.notes):
        assert not re.search(r"\bnan\b|\bNone\b|\binf\b", said, re.I)
    if name in ("all right", "all wrong", "one row"):
        assert "undefined" in page
        assert "undefined" in str(told)
    if name == "constant":
        assert "Warning. mcp gives every row the same confidence (0.7): it ranks nothing." in page


def test_the_terminal_table_has_the_columns_of_the_papers_in_percent(report):
    text = str(report)
    (heading,) = (line for line in text.splitlines() if "FPR-95" in line and "TPR" in line and "Acc" in line)
    assert heading.split() == ["Acc", "FPR-95", "Error", "Success", "AUC", "TPR", "TNR", "AURC", "AUC", "change"]
    lines = [line.split() for line in text.splitlines() if line.startswith("  mcp ")]
    assert len(lines) == 2
    for line, where in zip(lines, ("all", "shift: fog"), strict=True):
        assert line[1:9] == [f"{100 * found(report, metric, 'mcp', where).value:.2f}" for metric in COLUMNS]
    assert text.startswith("knows tells right from wrong better")
    assert max(map(len, text.splitlines())) <= 120


def test_the_page_shows_every_record_and_every_sentence(report, page):
    sections = ["table", "risk", "histograms", "separability", "sweep", "shifts", "next"]
    assert re.findall(r'<section id="(\w+)"', page) == sections
    page = visible(page)
    assert report.verdict in page
    assert all(sentence in page for sentence in report.findings.advice)
    for record in report.records:
        if record.metric in COLUMNS:
            assert f"{100 * record.value:.2f}" in page
    change = found(report, "failure_auroc_change", "worse")
    assert f"{100 * change.value:+.2f} [{100 * change.low:+.2f}, {100 * change.high:+.2f}]" in page
    assert "On AUPR-Error in print." in page


def test_the_page_asks_nothing_of_the_world_and_is_the_same_each_time(report, page):
    assert render(report.findings) == page
    assert "default-src 'none'" in html.unescape(page)
    assert not re.search(r"\sstyle\s*=|<[^>]*\son\w+\s*=|https?:|\bsrc=|@import|url\((?!#)", page)
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_a_hostile_name_stays_text():
    p = rows(80)
    other = Predictions(confidence=p.confidence**2, correct=p.correct)
    name = f"{HOSTILE}\x1b[31m"
    told = trust_report({"mcp": p, name: other}, resamples=20, shifted={name: {"mcp": p}}, dataset=HOSTILE)
    page = render(told.findings)
    assert HOSTILE not in page
    assert visible(page).count(HOSTILE) >= 5
    assert "\x1b" not in str(told)


def test_rows_that_a_predictor_was_fitted_on_are_told():
    p = rows(80)
    fitted = Predictions(confidence=p.confidence, correct=p.correct)
    fitted.fitted_on = (fitted.fingerprint,)
    (note,) = trust_report({"mcp": p, "bce": fitted}, resamples=20).findings.notes
    assert note == "these 80 rows are the rows bce was fitted on; its numbers are optimistic."


def test_the_same_seed_gives_the_same_report():
    one, two = (trust_report({"mcp": rows(100), "b": rows(100)}, resamples=20, seed=3) for _ in range(2))
    assert to_json(one.findings) == to_json(two.findings)


P = Predictions(confidence=C, correct=A)
BAD = {
    "no baseline": (({"bce": P},), {}, ValueError, r"judged must hold the baseline 'mcp' to compare with; got bce\."),
    "other rows": (
        ({"mcp": P, "b": Predictions(confidence=C, correct=A[::-1])},),
        {},
        ValueError,
        r"judged\['b'\] must hold the rows of 'mcp' in the same order; 8 of 10 are right in one and wrong",
    ),
    "fewer rows": (
        ({"mcp": P, "b": P.take(torch.arange(4))},),
        {},
        ValueError,
        r"judged\['b'\] must hold the 10 rows of 'mcp'; got 4\.",
    ),
    "no labels": (
        ({"mcp": Predictions(logits=torch.eye(3) * 5)},),
        {},
        ValueError,
        r"judged\['mcp'\] must say which answers were right",
    ),
    "a limit for nobody": (({"mcp": P},), {"distrust_below": {"tcp": 0.1}}, ValueError, "'tcp' is none"),
    "a limit beyond 1": (
        ({"mcp": P},),
        {"distrust_below": {"mcp": 50.0}},
        ValueError,
        r"distrust_below\['mcp'\] must be a number in \[0, 1\]; got 50\.0\.",
    ),
    "a limit in words": (
        ({"mcp": P},),
        {"distrust_below": {"mcp": "x"}},
        ValueError,
        r"distrust_below\['mcp'\] must be a number in \[0, 1\]; got 'x'\.",
    ),
    "one limit": (
        ({"mcp": P},),
        {"distrust_below": 0.3},
        TypeError,
        "distrust_below must be a dict from the name of a",
    ),
    "a list": (
        ([P],),
        {},
        TypeError,
        r"judged must be a dict from the name of a predictor to Predictions.*; got list\.",
    ),
    "a list of shifts": (({"mcp": P},), {"shifted": [P]}, TypeError, r"shifted must be a dict .*; got list\."),
    "logits": (({"mcp": P.confidence},), {}, TypeError, r"judged\['mcp'\] must be Predictions.*; got Tensor\."),
    "no name": (({"mcp": P, "": P},), {}, ValueError, r"judged must have a word for each name; got ''\."),
    "a number for a name": (({"mcp": P, 3: P},), {}, ValueError, r"judged must have a word for each name; got 3\."),
    "a shift of no name": (({"mcp": P},), {"shifted": {" ": {"mcp": P}}}, ValueError, "shifted must have a word for"),
    "no curve": (({"mcp": P},), {"sweep": 3}, ValueError, r"sweep must be a Curve with columns .*; got int\."),
    "a shift alone": (
        ({"mcp": P},),
        {"shifted": {"fog": {"b": P}}},
        ValueError,
        r"shifted\['fog'\] must hold the base",
    ),
    "another curve": (
        ({"mcp": P},),
        {"sweep": Curve("s", {"alpha": np.ones(2)}, 2)},
        ValueError,
        "sweep must be a Curve with columns alpha, loss, tpr, tnr; got alpha",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the type checks of the tests would answer first
    arguments, options, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        trust_report(*arguments, **options, resamples=20)


def test_a_record_of_outliers_is_shown_beside(report):
    told = trust_report(
        {"mcp": P}, resamples=20, outliers=[Record("ood_auroc", 0.7512, 9, where="outside: svhn", method="msp")]
    )
    assert "75.12" in visible(render(told.findings))
    assert re.search(r"svhn\n  msp +75\.12", str(told))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for work in (trust_report, outlier_records):  # the options are tested above
        monkeypatch.setattr(f"calibrant.cli.trust.{work.__name__}", partial(work, resamples=20))
    for name, n, seed in (("fit", 90, 0), ("test", 150, 1)):
        p = rows(n, seed)
        np.savez(name, logits=p.logits.numpy(), labels=p.labels.numpy())
    np.savez("odd", logits=torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).numpy())
    np.savez("featured", logits=p.logits.numpy(), labels=p.labels.numpy(), features=p.logits.numpy())
    np.savez("five", logits=np.eye(5) * 4.0, labels=np.arange(5))
    np.savez("right", logits=np.eye(4) * 4.0, labels=np.arange(4))
    np.savez("wrong", logits=np.eye(4) * 4.0, labels=np.arange(4)[::-1])
    (tmp_path / "other").mkdir()
    np.savez("other/odd", logits=np.eye(4))
    np.savez("weighted", logits=p.logits, labels=p.labels, features=p.logits, weights=np.ones(len(p)))
    np.savez("strange", logits=-p.logits, features=p.logits, weights=np.ones(len(p)))
    np.savez("pairs", confidence=np.array(C), correct=np.array(A))

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["calibrant", "trust", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        told = capsys.readouterr()
        return end.value.code or 0, told.out, told.err

    return call


def test_the_command_fits_judges_and_writes_the_page(run, tmp_path):
    code, out, _ = run(
        "fit.npz", "--apply", "test.npz", "--method", "steep_slope", "--ood", "odd.npz", "--report", "page.html"
    )
    assert code == 0
    assert "150 rows x 4 classes, logits, labels 0-3" in out
    assert [line.split()[0] for line in out.splitlines() if re.match(r"  (mcp|steep_slope) ", line)][:2] == [
        "mcp",
        "steep_slope",
    ]
    assert re.search(r"odd\n  msp +\d", out)
    assert out.rstrip().endswith("written: page.html")
    page = visible((tmp_path / "page.html").read_text())
    assert page.startswith("Trust report: test.npz")
    assert "Rows out of distribution" in page


def test_json_holds_the_findings_and_a_warning_about_the_same_rows(run):
    code, out, err = run("fit.npz", "--apply", "fit.npz", "--method", "bce", "--json", "--report", "all.json")
    told = json.loads(out)
    assert code == 0
    assert {r["method"] for r in told["records"]} == {"mcp", "bce"}
    assert told["notes"] == ["these 90 rows are the rows bce was fitted on; its numbers are optimistic."]
    assert "written: all.json" in err


@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_rows_that_are_all_right_or_all_wrong_decide_nothing(run, kind):
    code, out, _ = run("fit.npz", "--apply", f"{kind}.npz", "--method", "mcp")
    assert code == 3
    assert out.startswith(f"Every answer is {kind}: there is nothing to rank.")


def test_features_stay_beside_weights_for_rows_out_of_distribution(run):
    code, out, err = run("featured.npz", "--apply", "weighted.npz", "--method", "trust_score", "--ood", "strange.npz")
    assert code == 0, err
    assert re.search(r"strange\n  msp .*\n(  \w+ .*\n){3}  trust_score +\d", out)


def test_the_predictor_and_its_judgement_are_written_and_certify_reads_them(run, monkeypatch, capsys):
    code, out, err = run(
        "fit.npz", "--apply", "test.npz", "--method", "tcp", "--save", "tcp.safetensors", "--out", "judged.npz"
    )
    assert code == 0, err
    assert out.rstrip().endswith("written: tcp.safetensors\nwritten: judged.npz")
    predictor, rows_, written = load("tcp.safetensors"), read("test.npz"), np.load("judged.npz")
    assert sorted(written) == ["confidence", "correct"]
    assert written["confidence"].tolist() == predictor.judge(rows_).confidence.tolist()
    assert written["correct"].tolist() == rows_.correct.tolist()
    monkeypatch.setattr("sys.argv", ["calibrant", "certify", "judged.npz", "--max-error", "0.9"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code in (0, None), capsys.readouterr().err


def test_the_advice_names_commands_that_exist(report):
    said = report.findings.advice[1]
    assert "calibrant trust FIT.npz --apply ROWS.npz --method knows --out JUDGED.npz, then " in said
    assert said.endswith("calibrant certify JUDGED.npz --max-error 0.02.")
    alone = trust_report({"mcp": P}, resamples=20).findings.advice
    assert alone[0].endswith("chose: calibrant certify ROWS.npz --max-error 0.02.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit.npz", "--apply", "five.npz"), "five.npz must have the 4 classes of fit.npz; got 5."),
        (("fit.npz", "--apply", "pairs.npz"), "pairs.npz must hold logits or probs; it holds confidence and correct."),
        (("featured.npz", "--apply", "test.npz"), "test.npz must hold features, as featured.npz does"),
        (("fit.npz", "--apply", "odd.npz"), "odd.npz must hold labels; it holds logits."),
        (("fit.npz", "--apply", "test.npz", "--method", "bcee"), "; got 'bcee'. Did you mean 'bce'?"),
        (("fit.npz", "--apply", "test.npz", "--method", "foo"), "method must be one of bce, class_balanced, "),
        (("fit.npz", "--apply", "test.npz", "--method", "mc_dropout"), "mc_dropout looks at the classifier's inputs."),
        (("fit.npz", "--apply", "test.npz", "--method", "trust_score"), "fit.npz must hold features: trust_score "),
        (
            ("fit.npz", "--apply", "test.npz", "--ood", "odd.npz", "--ood", "other/odd.npz"),
            "--ood must name files with different names; 'odd' is there twice.",
        ),
        (("fit.npz", "--apply", "test.npz", "--save", "a.safetensors"), "--save needs exactly one --method; got none."),
        (
            ("fit.npz", "--apply", "test.npz", "--out", "a.npz", "--method", "bce", "--method", "tcp"),
            "--out needs exactly one --method; got 2.",
        ),
        (
            ("fit.npz", "--apply", "test.npz", "--out", "test.npz", "--method", "bce"),
            "test.npz must not be a file that is read",
        ),
        (
            ("fit.npz", "--apply", "test.npz", "--save", "a.pt", "--method", "bce"),
            "a.pt must end in .safetensors; got '.pt'.",
        ),
        (
            ("fit.npz", "--apply", "fit.npz", "--out", "a.npz", "--method", "bce"),
            "fit.npz must hold other rows than fit.npz for --out",
        ),
        (("fit.npz", "--apply", "test.npz", "--report", "page.pdf"), "must end in .html or .json"),
        (("none.npz", "--apply", "test.npz"), "none.npz does not exist"),
    ],
)
def test_the_command_refuses_in_one_sentence(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
