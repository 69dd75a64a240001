"""The demonstration: every number it shows is recomputed here, and no row that fitted anything is judged."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import test_page
import torch

from calibrant.calibrators.cross_fit import fit
from calibrant.calibrators.smart import Smart
from calibrant.calibrators.temperature import Temperature
from calibrant.cli import demo as command
from calibrant.cli import main
from calibrant.cli.tour.demonstration import findings as sentences
from calibrant.cli.tour.demonstration import headline
from calibrant.cli.tour.experiments import FULL, LOGITS, LOSSES, REPAIRS, Size, judge, read, recipes, total
from calibrant.metrics.evidence import floor, interval
from calibrant.predictions.predictions import Predictions
from calibrant.records import Curve, Findings, Record
from calibrant.report import demo, notation
from calibrant.selection.certification import certify
from calibrant.training.train import together

SMALL = Size(methods=("temperature",), epochs=20, resamples=20)  # the same way, in less time
FITS = {"temperature": Temperature, "smart": Smart}
browser = test_page.browser

# The command as a user runs it, but for its size; what it found and how it told its progress are kept in a file.
PROGRAM = f"""
import json, pathlib, sys
from calibrant.cli import demo, main
from calibrant.cli.tour.experiments import Size
from calibrant.records import to_json

demo.FULL = {SMALL!r}
kept, steps, demonstrate, total = pathlib.Path(sys.argv.pop()), [], demo.demonstrate, demo.total

def announced(out, size):
    steps.append(total(out, size))
    return steps[0]

def watched(out, size, on_step):
    found = demonstrate(out, size=size, on_step=lambda name: (steps.append(name), on_step(name)))
    kept.write_text(json.dumps({{"total": steps[0], "steps": len(steps) - 1, "findings": json.loads(to_json(found))}}))
    return found

demo.total, demo.demonstrate = announced, watched
main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "new" / "folder"


@pytest.fixture(scope="module")
def once(folder):
    """The output of one run, and what it kept."""
    kept = folder.parent.parent / "kept.json"
    command = [sys.executable, "-W", "error", "-c", PROGRAM, "demo", "--out", str(folder), str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, json.loads(kept.read_text())


@pytest.fixture(scope="module")
def printed(once):
    return once[0]


@pytest.fixture(scope="module")
def findings(once):
    told = once[1]["findings"]
    records = [{**r, "value": float("nan") if r["value"] is None else r["value"]} for r in told.pop("records")]
    curves = [
        Curve(c["name"], {name: np.array(column) for name, column in c["columns"].items()}, c["n"], c["settings"])
        for c in told.pop("curves")
    ]
    texts = {name: tuple(text) if isinstance(text, list) else text for name, text in told.items()}
    return Findings(records=tuple(Record(**r) for r in records), curves=tuple(curves), **texts)


@pytest.fixture(scope="module")
def records(findings):
    return findings.records


def real():
    """Logits and labels of the real network by method, and those certified on, by the obvious way."""
    with np.load(LOGITS) as arrays:
        val, test = ((arrays[f"{p}_logits"], arrays[f"{p}_labels"].astype(np.int64)) for p in ("val", "test"))
    order = np.random.default_rng(0).permutation(5000)
    fitting, certifying = np.sort(order[:2500]), np.sort(order[2500:])
    rows = torch.from_numpy(val[0][fitting]), torch.from_numpy(val[1][fitting])
    fitted = {name: method.fit(*rows) for name, method in FITS.items()}
    logits = torch.from_numpy(test[0])
    found = {"as trained": logits} | {name: cal(logits) for name, cal in fitted.items()}
    certified = fitted["temperature"](torch.from_numpy(val[0][certifying])), torch.from_numpy(val[1][certifying])
    return {name: (each, torch.from_numpy(test[1])) for name, each in found.items()}, certified


def trained(folder):
    """Logits and labels of the digits by method, from the files of the runs."""
    found = {}
    for loss in LOSSES:
        parts = {}
        for part in ("calibration", "test"):
            with np.load(folder / "runs" / loss / f"{part}.npz") as arrays:
                parts[part] = torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["labels"])
        logits, labels = parts["test"]
        found[loss] = logits, labels
        for repair in REPAIRS:
            found[f"{loss} + {repair}"] = FITS[repair].fit(*parts["calibration"])(logits), labels
    return found


def oracle(logits, labels):
    """Accuracy, log loss, Brier score and ECE in 15 bins, in plain numpy."""
    z, y = logits.double().numpy(), labels.numpy()
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    rows = np.arange(len(y))
    right, sure = p.argmax(1) == y, p.max(1)
    place = np.ceil(sure * 15)
    ece = sum(abs((right[place == b] - sure[place == b]).sum()) for b in np.unique(place)) / len(y)
    brier = ((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean()
    return {"accuracy": right.mean(), "nll": -np.log(p[rows, y]).mean(), "brier": brier, "top_label_ece": ece}


def value(records, dataset, method, metric, against=""):
    found = [
        r
        for r in records
        if (r.dataset, r.method, r.metric, r.settings.get("against", "")) == (dataset, method, metric, against)
    ]
    assert len(found) == 1, (dataset, method, metric)
    return found[0]


@pytest.fixture(scope="module")
def everything(printed, folder):
    return {"cifar100": real()[0], "digits": trained(folder)}


def test_every_number_of_the_table_is_that_of_a_direct_computation(everything, records):
    for dataset, methods in everything.items():
        for method, (logits, labels) in methods.items():
            for metric, expected in oracle(logits, labels).items():
                assert value(records, dataset, method, metric).value == pytest.approx(expected, abs=2e-6), method


def test_interval_and_noise_floor_are_those_of_the_same_rows(everything, records):
    for dataset, method in (("cifar100", "smart"), ("digits", "seca + temperature")):
        logits, labels = everything[dataset][method]
        rows = Predictions(logits=logits, labels=labels)
        sure = interval("top_label_ece", rows, resamples=20, level=0.9)
        noise = floor("top_label_ece", rows, draws=20)
        found = value(records, dataset, method, "top_label_ece")
        assert (found.low, found.high) == pytest.approx((sure.low, sure.high))
        assert (found.floor, found.floor_high, found.p) == pytest.approx((noise.mean, noise.high, noise.p))


def test_every_change_is_the_difference_of_two_rows_of_the_table(records):
    changes = [r for r in records if r.metric.endswith("_change")]
    assert len(changes) == 2 * 2 + 1 + 10 + 8
    for change in changes:
        metric, other = change.metric.removesuffix("_change"), change.settings["against"]
        one, two = (value(records, change.dataset, method, metric).value for method in (change.method, other))
        assert change.value == pytest.approx(one - two, abs=1e-12)
        assert change.low <= change.value <= change.high
        assert change.level == pytest.approx(1 - 0.05 / change.settings["family"])


def test_the_table_has_every_row_and_the_terminal_and_the_page_show_its_numbers(printed, folder, records, everything):
    names = [(dataset, method) for dataset, methods in everything.items() for method in methods]
    assert len(names) == 3 + 15
    lines = [line.lstrip("* ") for line in printed.splitlines()]
    page = (folder / "report.html").read_text()
    for dataset, method in names:
        cells = [value(records, dataset, method, metric) for metric in demo.METRICS]
        numbers = [notation.number(record.value) for record in cells]
        line = next(line for line in lines if re.match(rf"{re.escape(method)} +[\d.]", line))
        assert line[len(method) :].split()[:4] == numbers
        assert notation.interval(cells[-1]) in line
        row = re.search(rf'<th scope="row">{re.escape(method)}</th>(.*?)</tr>', page, re.S)[1]
        shown = [re.sub(r"<.*?>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row, re.S)]
        assert shown[:3] == numbers[:3]
        assert shown[3] == f"{numbers[3]} {notation.interval(cells[-1])}"
        assert shown[4] == notation.floor(cells[-1])


def test_the_terminal_prints_headline_table_and_paragraph_within_its_width(printed, findings, folder):
    assert max(map(len, printed.splitlines())) <= max(100, len(f"written: {folder}/report.html"))
    flat = " ".join(printed.split())
    assert flat.startswith(findings.verdict)
    assert all(f"- {sentence}" in flat for sentence in findings.advice)
    assert printed.rstrip().endswith(f"written: {folder / 'report.html'}")


def test_the_promise_is_certified_on_rows_that_fitted_nothing_and_judged_on_test_rows(records):
    methods, (logits, labels) = real()
    chosen = next(r for r in records if r.metric == "chosen")
    certified = next(r for r in records if r.metric == "certified")
    assert (chosen.method, chosen.n, certified.n) == ("temperature", 2500, 2500)
    policy = certify(Predictions(logits=logits, labels=labels), max_error=0.1, delta=0.05)
    assert certified.value == pytest.approx(policy.threshold, rel=1e-6)
    logits, labels = methods["temperature"]
    sure, predicted = logits.double().softmax(1).max(1)
    accepted = sure > certified.value
    coverage = next(r for r in records if r.metric == "coverage")
    error = next(r for r in records if r.metric == "selective_error")
    assert coverage.value == pytest.approx(float(accepted.double().mean()), abs=2e-4)
    assert error.value == pytest.approx(float((predicted != labels)[accepted].double().mean()), abs=2e-4)
    assert certified.settings["held"] == (error.value <= 0.1)


def test_no_row_serves_two_purposes(folder, printed):
    rows = read()
    parts = [{z.tobytes() for z in part.logits.numpy()} for part in (rows.fitting, rows.certifying, rows.test)]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 15_000 - 2  # the test set shows two pictures twice
    for loss in LOSSES:
        at = {part: np.load(folder / "runs" / loss / f"{part}.npz")["rows"] for part in ("validation", "calibration")}
        facts = json.loads((folder / "runs" / loss / "run.json").read_text())
        assert not set(at["validation"]) & set(at["calibration"])
        assert facts["rows"] == {"test": 600, "validation": 300, "calibration": 700, "train": 1197 - 300 - 700}
        assert facts["recipe"]["validation_from"] == "train"


def test_nothing_that_was_fitted_on_is_judged(findings):
    assert not any("optimistic" in note for note in findings.notes)  # as an audit of such rows would say


def test_a_repair_fitted_on_the_rows_it_is_judged_on_would_be_told():
    rows = read()
    cheated = fit("temperature", rows.test, 0).calibrate(rows.test)
    found = judge(cheated, dataset="a", model="b", method="c", size=SMALL)
    assert "optimistic" in found.notes[0]


def direction(change):
    return "lower" if change.high < 0 else "higher" if change.low > 0 else "within noise"


def sorted_losses(text):
    """The losses that a sentence names, by direction."""
    found = (part.split(" for ") for part in text.split("; "))
    return {loss: way for way, losses in found for loss in losses.split(", ")}


def test_the_findings_sort_the_losses_as_the_records_do(records, findings):
    for repair in REPAIRS:
        (said,) = re.findall(rf"With {repair} their log loss is (.*)\.", "\n".join(findings.advice))
        changes = {loss: value(records, "digits", f"{loss} + {repair}", "nll_change", loss) for loss in LOSSES}
        assert sorted_losses(said) == {loss: direction(change) for loss, change in changes.items()}
    against = re.fullmatch(
        r"Against cross_entropy the log loss is (.*)\. With temperature on both it is (.*)\.", findings.advice[-1]
    )
    for said, suffix in zip(against.groups(), ("", " + temperature"), strict=True):
        changes = {
            loss: value(records, "digits", f"{loss}{suffix}", "nll_change", f"cross_entropy{suffix}")
            for loss in LOSSES[1:]
        }
        assert sorted_losses(said) == {loss: direction(change) for loss, change in changes.items()}


def test_an_ece_is_called_more_than_noise_only_if_all_looks_together_allow_it(records):
    def said(p):
        return " ".join(sentences([replace(r, p=p) if r.metric == "top_label_ece" else r for r in records]))

    assert "] is within noise." in said(0.03)  # two looks
    assert "] is beyond noise." in said(0.011)
    assert "the ECE is beyond noise for none." in said(0.011)  # five looks
    assert "the ECE is beyond noise for cross_entropy, focal, ada_focal, seca, au." in said(0.006)


@pytest.mark.parametrize(
    ("low", "high", "way"), [(-0.2, -0.1, "lower"), (0.1, 0.2, "higher"), (-0.1, 0.1, "within noise")]
)
def test_the_findings_follow_the_intervals_of_the_changes(records, low, high, way):
    changed = [replace(r, low=low, high=high) if r.metric.endswith("_change") else r for r in records]
    said = " ".join(sentences(changed))
    assert said.count(f"{way} for focal, ada_focal, seca, au") == 2
    assert said.count(f"{way} for cross_entropy, focal, ada_focal, seca, au") == 2
    assert f"log loss {way} (" in said
    assert f"ECE {way} (" in said
    assert (", within noise;" in headline(changed)) == (way == "within noise")


def test_the_words_follow_what_was_chosen_and_what_was_promised(records):
    def told(metric, method="temperature", **settings):
        return [
            replace(r, method=method, settings={**r.settings, **settings}) if r.metric == metric else r for r in records
        ]

    assert "was better than leaving it as it is" in " ".join(sentences(told("chosen", "as trained")))
    assert headline(told("chosen", "as trained")).startswith("No calibrator was better")
    assert headline(told("certified", held=False)).endswith("errors among accepted answers was broken.")
    assert headline(told("certified", held=None)).endswith("errors among accepted answers is in doubt.")
    none = [replace(r, value=float("nan")) if r.metric == "certified" else r for r in records]
    assert headline(none).endswith("no limit of its errors could be certified.")
    assert "no threshold could be certified" in " ".join(sentences(none))


def test_the_page_is_drawn_from_the_findings_alone_and_does_without_a_promise(findings, folder):
    assert demo.render(findings) == (folder / "report.html").read_text()
    none = {"certified": float("nan"), "selective_error": float("nan"), "coverage": 0.0}
    changed = tuple(replace(r, value=none.get(r.metric, r.value)) for r in findings.records)
    assert "nan" not in demo.text(replace(findings, records=changed))
    assert 'aria-label="Risk-coverage curve' in demo.render(replace(findings, records=changed))


def test_json_prints_the_findings_and_nothing_else_on_stdout(findings, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "demonstrate", lambda out, size, on_step: findings)
    monkeypatch.setattr(sys, "argv", ["calibrant", "demo", "--json", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code == 0
    assert len(json.loads(told.out)["records"]) == len(findings.records)
    assert told.err == f"written: {tmp_path / 'report.html'}\n"


def test_a_second_call_in_the_same_folder_trains_nothing(folder, printed):
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    runs = together(recipes(folder, SMALL), device="cpu")
    assert [run.recipe.loss for run in runs] == list(LOSSES)
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")} == before


def test_the_full_size_is_five_trainings_and_a_choice_with_temperature_and_smart():
    assert {"temperature", "smart"} <= set(FULL.methods)
    assert [recipe.loss for recipe in recipes(Path("demo"), FULL).values()] == list(LOSSES)
    assert 10 / (1 + FULL.resamples) <= 0.05  # or no p-value could be as small as ten looks ask for


def test_the_bar_is_told_as_many_steps_as_there_are(once, folder):
    assert once[1]["steps"] == once[1]["total"]
    assert total(folder, SMALL) == once[1]["total"] - len(LOSSES) * SMALL.epochs  # finished runs are read


def test_a_file_where_the_folder_should_be_is_refused_in_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "argv", ["calibrant", "demo", "--out", str(tmp_path / "file")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("calibrant: out must be a folder to write into;")


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_opens_without_complaint_asks_for_nothing_and_never_scrolls_sideways(browser, folder, printed, width):
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get_log("browser")
    browser.get((folder / "report.html").as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    header = browser.find_elements("css selector", "table.sortable")[1].find_element("xpath", ".//th[5]//button")
    header.click()
    errors = [
        float(cell.get_attribute("data-sort")) for cell in browser.find_elements("xpath", "(//table)[2]/tbody/tr/td[4]")
    ]
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(errors) == 15
    assert errors == sorted(errors)
