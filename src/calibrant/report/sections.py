"""The order of reading: which metric stands under which heading, on the page and in the terminal."""

from collections.abc import Mapping
from dataclasses import dataclass

from calibrant.records import Findings, Record


@dataclass(frozen=True)
class Section:
    """A heading, one sentence about it, and its metrics (name -> what a person calls it) in order of reading."""

    slug: str
    title: str
    says: str
    metrics: Mapping[str, str]


SECTIONS = (
    Section(
        "accuracy",
        "Accuracy",
        "How often the answer is right. Compare it with the accuracy you know, before reading on.",
        {"accuracy": "Accuracy", "top5_accuracy": "Top-5 accuracy"},
    ),
    Section(
        "scores",
        "Proper scores and their split",
        "Log loss and Brier score grade all the probabilities at once. The grade of the confidence alone, as a"
        " forecast of being right, splits exactly into miscalibration - discrimination + uncertainty; only"
        " miscalibration can be repaired after training.",
        {
            "nll": "Log loss (NLL)",
            "brier": "Brier score",
            "top_label_brier": "Brier score of the confidence",
            "corp_miscalibration": "Miscalibration",
            "corp_discrimination": "Discrimination",
            "corp_uncertainty": "Uncertainty",
        },
    ),
    Section(
        "direction",
        "Too sure or not sure enough",
        "A positive gap or a slope below 1 means over-confident; the opposite signs mean under-confident.",
        {
            "mean_confidence": "Mean confidence",
            "signed_gap": "Confidence minus accuracy",
            "calibration_slope": "Calibration slope",
            "calibration_intercept": "Calibration intercept",
        },
    ),
    Section(
        "error",
        "Calibration error",
        "How far confidence lies from accuracy. Read each value beside its noise floor: what a perfectly"
        " calibrated model with the same confidences would show on as many rows.",
        {
            "ece_debiased": "Calibration error, debiased",
            "sm_ece": "SmoothECE",
            "smooth_ce": "Smooth calibration error",
            "ece_excess": "Calibration error above the noise",
            "classwise_ece": "Class-wise calibration error",
            "binary_ece": "Calibration error of the positive class",
            "ks_error": "Kolmogorov-Smirnov calibration error",
            "kuiper_error": "Kuiper calibration error",
        },
    ),
    Section(
        "tests",
        "Tests of perfect calibration",
        "A p-value near 0 speaks against perfect calibration, a large one proves nothing.",
        {
            "ks_pvalue": "Kolmogorov-Smirnov test",
            "kuiper_pvalue": "Kuiper test",
            "spiegelhalter_pvalue": "Spiegelhalter test",
            "spiegelhalter_z": "Spiegelhalter's z",
        },
    ),
    Section(
        "papers",
        "For comparison with papers",
        "The number most papers print. It is biased upward and depends on the bins and on n; do not decide by it.",
        {"top_label_ece": "Top-label ECE", "ece_sweep": "ECE, monotonic sweep", "mce": "Maximum calibration error"},
    ),
    Section(
        "ranking",
        "What abstaining buys",
        "Accept the surest answers, send the rest to review: how well confidence tells right from wrong.",
        {
            "failure_auroc": "AUROC of right against wrong",
            "fpr_at_95_tpr": "Errors accepted with 95 % of the right",
            "aupr_error": "Average precision of finding errors",
            "aupr_success": "Average precision of finding right answers",
            "augrc": "AUGRC",
            "aurc": "AURC",
            "e_aurc": "Excess AURC",
            "risk_at_coverage": "Error at a fixed coverage",
            "coverage_at_risk": "Coverage at a fixed error",
        },
    ),
)

OTHER = Section("other", "Other measures", "Everything else that was measured.", {})

NAMES = {name: title for section in SECTIONS for name, title in section.metrics.items()}


def grouped(findings: Findings) -> list[tuple[Section, list[Record]]]:
    """Put the records of the whole data under their sections, in order of reading; none is lost."""
    overall = [record for record in findings.records if record.where == "all"]
    filled = [(section, _under(section, overall)) for section in SECTIONS]
    filled.append((OTHER, [record for record in overall if record.metric not in NAMES]))
    return [(section, records) for section, records in filled if records]


def _under(section: Section, records: list[Record]) -> list[Record]:
    order = list(section.metrics)
    chosen = [record for record in records if record.metric in section.metrics]
    return sorted(chosen, key=lambda record: order.index(record.metric))
