"""Presets: the training objectives of the papers' tables.

A name is ``paper/row``, or ``paper/row/setting`` where the paper tunes the row for a data set and network. MMCE is
"released" throughout: its published weights were tuned with that normalisation. So is the confidence of AU: where the
paper names negative entropy (ViT-S), its code computes 1 for every row, which is cross-entropy times 0.77. A loss that
needs the number of classes is given it by `Criterion.preset`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """The arguments of `Criterion`."""

    loss: str
    options: Mapping[str, Any] = field(default_factory=dict)
    penalty: str | None = None
    weight: float = 1.0
    penalty_options: Mapping[str, Any] = field(default_factory=dict)


def _mmce(weight: float) -> Preset:
    return Preset("cross_entropy", penalty="mmce", weight=weight, penalty_options={"normalisation": "released"})


CE, BRIER, FLSD = Preset("cross_entropy"), Preset("brier"), Preset("flsd")

# Zhou et al., arXiv 2505.23463: networks in the order of its tables
AU_NETWORKS = {
    "cifar10": ("resnet50", "resnet110", "wrn_28_10", "preresnet56"),
    "cifar100": ("resnet50", "resnet110", "wrn_28_10", "preresnet56"),
    "tiny_imagenet": ("vit_s", "swin_t"),
}
AU_TUNED: dict[str, dict[str, tuple[float, ...]]] = {
    "inverse_focal": {
        "cifar10": (2.0, 3.0, 1.5, 2.0),
        "cifar100": (1.0, 1.5, 1.0, 1.0),
        "tiny_imagenet": (1.0, 1.0),
    },
    "dual_focal": {
        "cifar10": (5.0, 4.5, 2.6, 4.0),
        "cifar100": (5.0, 6.1, 3.9, 4.5),
        "tiny_imagenet": (1.0, 1.0),
    },
}
AU_KAPPA: dict[str, tuple[float, ...]] = {
    "cifar10": (0.88, 0.75, 0.80, 0.75),
    "cifar100": (0.75, 0.80, 0.80, 0.92),
    "tiny_imagenet": (0.40, 0.60),
}
AU_NU: dict[str, tuple[float, ...]] = {
    "cifar10": (0.1, 0.1, 0.1, 0.1),
    "cifar100": (0.005, 0.005, 0.1, 0.01),
    "tiny_imagenet": (0.05, 0.05),
}
KDE_WEIGHT = {"cifar10": 0.3, "cifar100": 0.5, "tiny_imagenet": 0.3}


def _au_paper() -> dict[str, Preset]:
    rows = {"cross_entropy": CE, "flsd": FLSD, "aurc": Preset("aurc")}
    for data, networks in AU_NETWORKS.items():
        rows[f"kde_ece/{data}"] = Preset("cross_entropy", penalty="kde_ece", weight=KDE_WEIGHT[data])
        for place, network in enumerate(networks):
            at = f"{data}-{network}"
            for name, tuned in AU_TUNED.items():
                rows[f"{name}/{at}"] = Preset(name, {"gamma": tuned[data][place]})
            rows[f"au/{at}"] = Preset("au", {"kappa": AU_KAPPA[data][place], "nu": AU_NU[data][place]})
    return rows


PAPERS: dict[str, dict[str, Preset]] = {
    "au-paper": _au_paper(),
    # Ghosh, Schaaf & Gormley, NeurIPS 2022
    "adafocal-paper": {
        "cross_entropy": CE,
        "brier": BRIER,
        "mmce": _mmce(2.0),
        "label_smoothing": Preset("label_smoothing", {"alpha": 0.05}),
        "flsd": FLSD,
        "ada_focal": Preset("ada_focal"),
        **{f"focal-{gamma}": Preset("focal", {"gamma": float(gamma)}) for gamma in (3, 4, 5)},
        **{
            f"cal_focal-{rate}-case{case}": Preset("cal_focal", {"rate": float(rate), "case": case})
            for rate in (1, 10, 100)
            for case in (1, 2)
        },
    },
    # Guo et al., SMART, 2025: what its CIFAR classifiers were trained with
    "smart-paper": {
        "cross_entropy": CE,
        "brier": BRIER,
        "mmce": _mmce(2.0),
        "label_smoothing": Preset("label_smoothing", {"alpha": 0.05}),
        "flsd": FLSD,
        "focal": Preset("focal", {"gamma": 3.0}),
    },
    # SECA, 2025
    "seca-paper": {
        "cross_entropy": CE,
        "focal": Preset("focal", {"gamma": 3.0}),
        "label_smoothing": Preset("label_smoothing", {"alpha": 0.1, "convention": "k_minus_1"}),
        "mmce": _mmce(4.0),
        "mmce/imagenet": _mmce(2.0),
        "dca": Preset("cross_entropy", penalty="dca"),
        "flsd": FLSD,
        "mdca": Preset("focal", {"gamma": 1.0}, penalty="mdca"),
        "online_label_smoothing": Preset("online_label_smoothing", {"alpha": 0.5}),
        "dual_focal": Preset("dual_focal", {"gamma": 5.0}),
        "ada_focal": Preset("ada_focal"),
        "seca": Preset("seca"),
    },
}

PRESETS: dict[str, Preset] = {
    f"{paper}/{row}": preset for paper, rows in PAPERS.items() for row, preset in rows.items()
}
