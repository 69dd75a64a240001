"""Small runs without BatchNorm, whose batch two ranks can share: a loss of rows, one of the batch, one summed."""

from calibrant.training.recipe import Recipe

BASE = Recipe("digits", "lenet", 2, 0.05, momentum=0.9, batch=50, validation=200, augment="crop_flip", seed=3)
RECIPES = {
    "rows": BASE,
    "batch": BASE.changed({"loss": "seca", "penalty": "mmce", "weight": 0.5}),
    "summed": BASE.changed({"loss": "ada_focal", "reduction": "sum", "clip": 2.0}),
}
