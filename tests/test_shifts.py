"""Shifted images: attacks stay within epsilon, raise the loss and leave no trace; restyled images keep their phases."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from calibrant.losses.functional import true_nll
from calibrant.training.datasets.dataset import load
from calibrant.training.models.build import make
from calibrant.training.shifts import style
from calibrant.training.shifts.adversarial import fgsm, pgd
from calibrant.training.shifts.style import restyle

ATTACKS = {"fgsm": fgsm, "pgd": pgd}
each_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)


def drawn(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def truth(n, k=3):
    return torch.randint(k, (n,), generator=torch.Generator().manual_seed(9))


def linear(k=3, c=2, side=4):
    model = nn.Sequential(nn.Flatten(), nn.Linear(c * side * side, k))
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(torch.randn(weights.shape, generator=g))
    return model


def vertex(model, images, labels, epsilon):
    """Where a sign step ends for a linear model, by plain loops: its gradient is (p - onehot) W."""
    weights, bias = (value.detach().double().numpy() for value in model[1].parameters())
    result = images.double().numpy().copy()
    for row, image in enumerate(images.double().numpy()):
        logits = weights @ image.reshape(-1) + bias
        p = np.exp(logits - logits.max())
        p = p / p.sum()
        p[labels[row]] -= 1
        slope = (p @ weights).reshape(image.shape)
        for at in np.ndindex(image.shape):
            result[row][at] = min(max(image[at] + epsilon * np.sign(slope[at]), 0.0), 1.0)
    return torch.from_numpy(result)


@pytest.fixture(scope="module")
def digits():
    """Give a network for digits, trained for a second, with its test images and labels."""
    data = load("digits")
    model = make("mlp", 10, channels=1, side=8)
    inputs, labels = data.train.inputs / 255.0, data.train.labels
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    mean, std = data.mean, data.std
    for _ in range(40):
        optimiser.zero_grad()
        F.cross_entropy(model((inputs - mean[0]) / std[0]), labels).backward()
        optimiser.step()
    return model, data.test.inputs / 255.0, data.test.labels, {"mean": mean, "std": std}


def loss_of(model, images, labels, mean, std):
    with torch.no_grad():
        return float(true_nll(model.eval()((images - mean[0]) / std[0]), labels).mean())


def apart(left, right):
    """Return the largest distance of two pixels, less an ulp of the larger: rounding of the sum."""
    ulp = torch.finfo(left.dtype).eps * torch.maximum(left.abs(), right.abs()).double()
    return float(((left.double() - right.double()).abs() - ulp).max())


@pytest.mark.parametrize(
    "attack", [fgsm, pgd, lambda *given, **options: pgd(*given, **options, start="clean")], ids=["fgsm", "pgd", "clean"]
)
def test_on_a_linear_model_of_two_classes_every_attack_ends_at_the_vertex(attack):
    model, images, labels = linear(k=2), drawn(6, 2, 4, 4), truth(6, 2)
    found = attack(model, images, labels, epsilon=0.1)
    assert torch.allclose(found.double(), vertex(model, images, labels, 0.1), atol=1e-6)
    assert float((found - images).abs().max()) > 0.09


def test_one_sign_step_on_a_linear_model_of_many_classes_is_its_closed_form():
    model, images, labels = linear(k=5), drawn(6, 2, 4, 4), truth(6, 5)
    assert torch.allclose(fgsm(model, images, labels, epsilon=0.2).double(), vertex(model, images, labels, 0.2))
    once = pgd(model, images, labels, epsilon=0.2, steps=1, start="clean")  # the step of 2.5 epsilon is cut to epsilon
    assert torch.equal(once, fgsm(model, images, labels, epsilon=0.2))


def test_the_first_steps_of_pgd_are_its_formula():
    model, images, labels = linear(k=4), drawn(5, 2, 4, 4), truth(5, 4)
    expected = images.clone()
    for _ in range(3):
        here = expected.clone().requires_grad_()
        F.cross_entropy(model(here), labels, reduction="sum").backward()
        moved = expected + 0.02 * here.grad.sign()
        expected = torch.minimum(torch.maximum(moved, images - 0.05), images + 0.05).clamp(0, 1)
    found = pgd(model, images, labels, epsilon=0.05, step=0.02, steps=3, start="clean")
    assert torch.allclose(found, expected, atol=1e-7)


def test_images_normalised_inside_are_those_normalised_by_the_model():
    model, images, labels = linear(k=4), drawn(5, 2, 4, 4), truth(5, 4)
    mean, std = torch.tensor([0.3, 0.6])[:, None, None], torch.tensor([0.2, 4.0])[:, None, None]

    class Normalised(nn.Module):
        def forward(self, images):
            return model((images - mean) / std)

    for attack in (fgsm, pgd):
        given = attack(model, images, labels, epsilon=0.1, mean=(0.3, 0.6), std=(0.2, 4.0))
        assert torch.allclose(given, attack(Normalised(), images, labels, epsilon=0.1), atol=1e-6)


def test_attacks_raise_the_loss_of_a_network_and_many_steps_raise_it_more(digits):
    model, images, labels, scale = digits
    clean = loss_of(model, images, labels, **scale)
    once = loss_of(model, fgsm(model, images, labels, epsilon=0.1, **scale), labels, **scale)
    often = loss_of(model, pgd(model, images, labels, epsilon=0.1, **scale), labels, **scale)
    assert clean < 0.3
    assert often > once > 2 * clean
    far = loss_of(model, fgsm(model, images, labels, epsilon=0.2, **scale), labels, **scale)
    assert far > once


@each_attack
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
def test_no_pixel_moves_by_more_than_epsilon_or_leaves_its_range(attack, dtype, low, high):
    images = (low + (high - low) * drawn(7, 2, 4, 4)).to(dtype)
    images[0, 0, 0, :2] = torch.tensor([low, high])
    epsilon = (high - low) * 8 / 255
    found = attack(linear().to(dtype), images, truth(7), epsilon=epsilon, low=low, high=high)
    assert found.dtype == dtype
    assert not found.requires_grad
    assert apart(found, images) <= epsilon
    assert apart(found, images) > 0.9 * epsilon - 0.01 * (high - low)
    assert low <= float(found.min()) <= float(found.max()) <= high


@each_attack
def test_an_epsilon_of_zero_gives_the_images_back(attack):
    images = drawn(4, 2, 4, 4)
    kept = images.clone()
    assert torch.equal(attack(linear(), images, truth(4), epsilon=0.0), images)
    assert attack(linear(), images, truth(4), epsilon=0.3).data_ptr() != images.data_ptr()
    assert torch.equal(images, kept)


def test_pixels_without_a_gradient_stay():
    images, labels = drawn(4, 2, 4, 4), torch.zeros(4, dtype=torch.long)
    sure = linear()
    with torch.no_grad():
        sure[1].bias.copy_(torch.tensor([1e4, 0.0, 0.0]))  # the loss is exactly 0
    assert torch.equal(fgsm(sure, images, labels, epsilon=0.1), images)
    assert torch.equal(pgd(sure, images, labels, epsilon=0.1, start="clean"), images)
    blind = linear()
    with torch.no_grad():
        blind[1].weight[:, :16] = 0  # the first channel is not read
    found = fgsm(blind, images, labels, epsilon=0.1)
    assert torch.equal(found[:, 0], images[:, 0])
    assert float((found[:, 1] - images[:, 1]).abs().min()) > 0


def test_the_random_start_is_uniform_within_epsilon():
    sure, grey = linear(), torch.full((100, 2, 4, 4), 0.5)
    with torch.no_grad():
        sure[1].bias.copy_(torch.tensor([1e4, 0.0, 0.0]))  # nothing moves from there
    noise = (pgd(sure, grey, torch.zeros(100, dtype=torch.long), epsilon=0.2) - grey) / 0.2
    shares = torch.histc(noise, bins=4, min=-1, max=1) / noise.numel()
    assert torch.allclose(shares, torch.full((4,), 0.25), atol=0.03)  # four deviations
    assert float(shares.sum()) == pytest.approx(1.0, abs=2e-3)


@each_attack
def test_chunks_leave_no_trace_and_a_seed_decides_the_start(attack):
    model, images, labels = linear().double(), drawn(11, 2, 4, 4).double(), truth(11)
    whole = attack(model, images, labels, epsilon=0.1)
    assert torch.equal(attack(model, images, labels, epsilon=0.1, batch=3), whole)
    few = {"epsilon": 0.1, "steps": 1, "step": 0.01}
    assert torch.equal(pgd(model, images, labels, seed=4, **few), pgd(model, images, labels, seed=4, **few, batch=2))
    assert not torch.equal(pgd(model, images, labels, seed=4, **few), pgd(model, images, labels, seed=5, **few))


class Fragile(nn.Module):
    """A bit of everything that leaves a trace: statistics, draws, one layer in eval mode already, one frozen."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(32, 3))
        self.layers[1].eval()
        self.layers[3].bias.requires_grad_(False)
        self.modes, self.fails = [], False

    def forward(self, images):
        self.modes.append(self.layers[0].training)
        torch.rand(3)
        if self.fails:
            raise RuntimeError("no")
        return self.layers(images)


@each_attack
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_everything_is_left_as_found(attack, fails, around):
    model = Fragile()
    model.layers[3].weight.grad = torch.ones(3, 32)
    model.fails = fails
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with around():
        images, labels = drawn(4, 2, 4, 4), truth(4)
        if fails:
            with pytest.raises(RuntimeError, match="no"):
                attack(model, images, labels, epsilon=0.1)
        else:
            assert not torch.equal(attack(model, images, labels, epsilon=0.1), images)
        assert torch.is_grad_enabled() == (around is torch.enable_grad)
        assert torch.is_inference_mode_enabled() == (around is torch.inference_mode)
    assert not any(model.modes)
    assert [layer.training for layer in model.layers] == [True, False, True, True]
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.layers[3].weight.grad, torch.ones(3, 32))
    assert model.layers[0].weight.grad is None
    assert [p.requires_grad for p in model.parameters()] == [True, True, True, False]
    assert torch.equal(torch.get_rng_state(), state)


GOOD = {"images": drawn(4, 2, 4, 4), "labels": truth(4), "epsilon": 0.1}
BAD = [
    ({"epsilon": -0.1}, r"^epsilon must be a distance between pixels, finite and not negative; got -0\.1\.$"),
    ({"epsilon": math.nan}, r"^epsilon must be a distance between pixels, finite and not negative; got nan\.$"),
    ({"images": drawn(4, 4, 4)}, r"^images must have shape \(n, c, h, w\), none of them 0; got \(4, 4, 4\)\.$"),
    ({"images": drawn(0, 2, 4, 4)}, r"^images must have shape \(n, c, h, w\), none of them 0; got \(0, 2, 4, 4\)\.$"),
    ({"images": GOOD["images"] * torch.nan}, r"^images must be finite; some pixels are NaN or infinite\.$"),
    ({"images": GOOD["images"] / 0}, r"^images must be finite; some pixels are NaN or infinite\.$"),
    ({"images": GOOD["images"].add(1)}, r"^images must lie in \[0, 1\], from low to high; got \[1\S*, 2\]\. Pass pix"),
    ({"images": torch.ones(4, 2, 4, 4).byte()}, r"^images must be a floating point tensor of .* 0 to 1; got uint8\.$"),
    ({"labels": truth(5)}, r"^labels must have shape \(4,\), one an image; got \(5,\)\.$"),
    ({"labels": truth(4)[:, None]}, r"^labels must have shape \(4,\), one an image; got \(4, 1\)\.$"),
    ({"labels": truth(4).float()}, r"^labels must be a tensor of whole numbers; got float32\.$"),
    ({"labels": torch.tensor([0, 1, 2, 3])}, r"^labels must lie in \[0, 3\), the model's classes; got \[0, 3\]\.$"),
    ({"labels": torch.tensor([0, 1, 2, -1])}, r"^labels must lie in \[0, 3\), the model's classes; got \[-1, 2\]\.$"),
    ({"low": 1.0, "high": 0.0}, r"^low must be below high, the range of the pixels; got 1\.0 and 0\.0\.$"),
    ({"batch": 0}, r"^batch must be at least 1 image; got 0\.$"),
    (
        {"mean": (0.5, 0.5)},
        r"^mean and std must both be 2 numbers, one a channel, std above 0; got \(\(0\.5, 0\.5\), None",
    ),
    ({"mean": (0.5,), "std": (0.5,)}, r"^mean and std must both be 2 numbers, one a channel"),
    ({"mean": (0.5, 0.5), "std": (0.5, 0.0)}, r"^mean and std must both be 2 numbers, one a channel"),
    (
        {"model": nn.Conv2d(2, 3, 1)},
        r"^model must return logits of shape \(4, k\) for these images; got \(4, 3, 4, 4\)",
    ),
]


@each_attack
@pytest.mark.parametrize(("changes", "message"), BAD)
def test_bad_input_of_an_attack_gets_one_sentence(attack, changes, message):
    given = {"model": linear(), **GOOD, **changes}
    with pytest.raises((ValueError, TypeError), match=message):
        attack(given.pop("model"), given.pop("images"), given.pop("labels"), **given)


class Torn(nn.Module):
    def forward(self, images):
        return images.flatten(1)[:, :3].detach()


class Endless(nn.Module):
    def forward(self, images):
        return images.flatten(1)[:, :3] * torch.nan


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Torn(), r"^model must let a gradient reach its images; it does not\. Does it run without gradients\?$"),
        (Endless(), r"^model must have a gradient at every pixel; some are NaN\. Are its logits finite\?$"),
    ],
)
def test_a_model_without_a_usable_gradient_is_named(model, message):
    with pytest.raises(ValueError, match=message):
        fgsm(model, GOOD["images"], GOOD["labels"], epsilon=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, r"^steps must be a whole number of at least 1; got 0\.$"),
        ({"step": -0.1}, r"^step must be a distance between pixels, finite and not negative; got -0\.1\.$"),
    ],
)
def test_bad_steps_get_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        pgd(linear(), **GOOD, **options)


# Style.


def spectra(images):
    """Amplitudes and phases by numpy's own full transform."""
    found = np.fft.fft2(images.double().numpy())
    return np.abs(found), np.angle(found)


def test_an_image_keeps_its_phases_and_takes_the_mixed_amplitudes_of_another():
    content, other = drawn(3, 2, 6, 7), drawn(3, 2, 6, 7, seed=1)
    found = style._mixed(content.double(), other.double(), 0.7)
    (own, phase), (given, _), (amplitude, kept) = spectra(content), spectra(other), spectra(found)
    assert np.allclose(amplitude, 0.3 * own + 0.7 * given)
    assert np.allclose(np.exp(1j * kept), np.exp(1j * phase))


def test_where_nothing_is_clipped_the_images_returned_have_those_phases_too():
    images = 0.45 + 0.1 * drawn(5, 3, 8, 8).double()
    found = restyle(images, seed=3)
    (own, phase), (amplitude, kept) = spectra(images), spectra(found)
    assert np.allclose(np.exp(1j * kept), np.exp(1j * phase))
    for row in range(5):
        matches = [np.allclose(amplitude[row], own[other]) for other in range(5)]
        assert sum(matches) == 1
        assert not matches[row]


def test_nobody_takes_from_itself_and_everybody_gives_once():
    for n in (2, 3, 10, 101):
        for seed in range(5):
            givers = style._givers(n, seed)
            assert sorted(givers.tolist()) == list(range(n))
            assert not bool((givers == torch.arange(n)).any())
    assert not torch.equal(style._givers(20, 0), style._givers(20, 1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
def test_no_strength_changes_nothing_and_more_changes_more_within_the_range(dtype):
    images = (drawn(9, 3, 8, 8) * (255 if dtype == torch.uint8 else 1)).to(dtype)
    kept, state = images.clone(), torch.get_rng_state()
    assert torch.equal(restyle(images, strength=0.0), images)
    moved = [float((restyle(images, strength=s).double() - images).abs().mean()) for s in (0.1, 0.4, 1.0)]
    assert 0 < moved[0] < moved[1] < moved[2]
    full = restyle(images)
    assert full.dtype == dtype
    assert 0 <= float(full.min()) <= float(full.max()) <= (255 if dtype == torch.uint8 else 1)
    assert torch.equal(full, restyle(images, seed=0))
    assert torch.equal(images, kept)
    assert torch.equal(torch.get_rng_state(), state)


def test_bytes_are_rounded_and_chunks_leave_no_trace(monkeypatch):
    images = (drawn(9, 3, 8, 8) * 255).byte()
    whole = restyle(images, seed=2)
    exact = restyle(images.double() / 255, seed=2) * 255
    assert float((whole - exact).abs().max()) <= 0.5 + 1e-9
    monkeypatch.setattr(style, "CHUNK", 500)  # two images at a time
    assert torch.equal(restyle(images, seed=2), whole)


def test_flat_and_black_images_change_their_colour_only():
    flat = torch.full((1, 3, 8, 8), 0.3)
    photographs = [torch.zeros(1, 3, 8, 8), flat, drawn(1, 3, 8, 8)]
    for content in photographs[:2]:
        for other in photographs:
            found = style._mixed(content.double(), other.double(), 1.0)
            assert torch.allclose(found, other.double().mean((2, 3), keepdim=True).expand_as(found))


@pytest.mark.parametrize(
    ("images", "strength", "message"),
    [
        (drawn(1, 3, 8, 8), 1.0, r"^images must be at least 2, so that one takes the style of another; got 1\.$"),
        (drawn(3, 8, 8), 1.0, r"^images must have shape \(n, c, h, w\), none of them 0; got \(3, 8, 8\)\.$"),
        (drawn(2, 3, 8, 0), 1.0, r"^images must have shape \(n, c, h, w\), none of them 0; got \(2, 3, 8, 0\)\.$"),
        (drawn(2, 3, 8, 8), 1.5, r"^strength must lie in \[0, 1\]; got 1\.5\.$"),
        (drawn(2, 3, 8, 8), math.nan, r"^strength must lie in \[0, 1\]; got nan\.$"),
        (
            drawn(2, 3, 8, 8) - 2,
            1.0,
            r"^images must lie in \[0, 1\] if they are floating point; got \[-2, -1\S*\]\. Rest",
        ),
        (
            drawn(2, 3, 8, 8) * torch.nan,
            1.0,
            r"^images must lie in \[0, 1\] if they are floating point; got \[nan, nan\]",
        ),
        (torch.ones(2, 3, 8, 8).long(), 1.0, r"^images must be uint8 or floating point; got int64\.$"),
    ],
)
def test_bad_input_of_restyling_gets_one_sentence(images, strength, message):
    with pytest.raises((ValueError, TypeError), match=message):
        restyle(images, strength=strength)
