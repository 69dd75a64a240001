"""Corruptions: bytes in and out, the same in any batch, true to their formulas, harder with severity."""

import colorsys
import io
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from real_data import small, tiles
from scipy.stats import binom

from calibrant.registry import CORRUPTIONS
from calibrant.training.corruptions import corrupt as corrupt_module
from calibrant.training.corruptions.blur import DISCS, LARGE_DISCS, streaked
from calibrant.training.corruptions.corrupt import corrupt
from calibrant.training.corruptions.weather import plasma

FAMILIES = {
    "noise": {"gaussian_noise", "shot_noise", "impulse_noise"},
    "blur": {"defocus_blur", "glass_blur", "motion_blur", "zoom_blur"},
    "weather": {"snow", "frost", "fog", "brightness"},
    "digital": {"contrast", "elastic_transform", "pixelate", "jpeg_compression"},
}
RANDOM = FAMILIES["noise"] | {"glass_blur", "motion_blur", "snow", "frost", "fog", "elastic_transform"}
ELSEWHERE = {"glass_blur", "frost", "elastic_transform"}  # not ordered by squared difference; each has its own test

each = pytest.mark.parametrize("name", sorted(CORRUPTIONS))
each_severity = pytest.mark.parametrize("severity", range(1, 6))


def some(n=6, c=3, h=32, w=32, seed=0):
    """Random patches with a grain, some of them black or white."""
    rng = np.random.default_rng(seed)
    patches = rng.uniform(-60, 315, (n, c, -(-h // 4), -(-w // 4))).repeat(4, 2).repeat(4, 3)[:, :, :h, :w]
    return torch.from_numpy((patches + rng.normal(0, 10, (n, c, h, w))).clip(0, 255).astype(np.uint8))


def flat(value, n=2, c=3, side=32):
    return torch.full((n, c, side, side), value, dtype=torch.uint8)


@pytest.fixture(scope="module")
def photographs():
    return torch.from_numpy(tiles(small("cifar100/test.webp"))).permute(0, 3, 1, 2).contiguous()


def difference(a, b):
    return float((a.double() - b.double()).square().mean())


def test_the_fifteen_corruptions_are_there_in_four_families():
    found = {family: {e.name for e in CORRUPTIONS.entries() if e.facts["family"] == family} for family in FAMILIES}
    assert found == FAMILIES
    assert len(CORRUPTIONS) == 15


@each
@pytest.mark.parametrize("shape", [(3, 3, 32, 32), (2, 1, 28, 28), (2, 3, 8, 11), (1, 1, 40, 24), (1, 3, 88, 90)])
def test_shape_and_type_are_kept_and_the_input_is_not_changed(name, shape):
    images = some(*shape)
    before = images.clone()
    for severity in (1, 5):
        out = CORRUPTIONS[name](images, severity)
        assert out.dtype == torch.uint8
        assert out.shape == images.shape
        assert out.data_ptr() != images.data_ptr()
        assert not torch.equal(out, images)
    assert torch.equal(images, before)


@each
def test_the_same_seed_gives_the_same_images_and_the_random_state_is_left_alone(name):
    images = some()
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = corrupt(images, name, 3, seed=5)
    torch.rand(3)
    torch.set_rng_state(torch_state)
    assert torch.equal(corrupt(images, name, 3, seed=5), first)
    assert torch.equal(CORRUPTIONS[name](images, 3, generator=torch.Generator().manual_seed(5)), first)
    assert torch.equal(CORRUPTIONS[name](images, 3), corrupt(images, name, 3))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert torch.equal(corrupt(images, name, 3, seed=6), first) == (name not in RANDOM)


@each
def test_the_result_does_not_depend_on_the_size_of_the_chunks(name, monkeypatch):
    images = some(7)
    for severity in (2, 5):
        whole = corrupt(images, name, severity)
        for rows in (1, 3):
            monkeypatch.setattr(corrupt_module, "CHUNK", rows * 3 * 32 * 32)
            said = []
            assert torch.equal(corrupt(images, name, severity, on_step=said.append), whole)
            assert len(said) == math.ceil(7 / rows)
            assert said[-1] == "7 of 7 images"
        monkeypatch.undo()


@each
def test_the_layout_in_memory_does_not_matter(name):
    images = some(3)
    turned = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert torch.equal(corrupt(turned, name, 4), corrupt(images, name, 4))


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_each_image_has_its_own_randomness(name):
    twins = some(1).expand(2, -1, -1, -1)
    first, second = corrupt(twins, name, 4)
    assert not torch.equal(first, second)


@each
def test_black_white_one_image_and_none_are_corrupted_too(name):
    for severity in (1, 5):
        for value in (0, 255):
            for c in (1, 3):
                assert corrupt(flat(value, 1, c), name, severity).shape == (1, c, 32, 32)
        assert corrupt(flat(0, 0), name, severity).shape == (0, 3, 32, 32)
        assert CORRUPTIONS[name](flat(0, 0, 1), severity).shape == (0, 1, 32, 32)


@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - FAMILIES["noise"] - {"frost", "jpeg_compression"}))
def test_grey_images_fare_as_colour_images_of_three_equal_channels(name):
    grey = some(3, 1)
    colour = corrupt(grey.expand(-1, 3, -1, -1), name, 4)
    assert (colour.int() - corrupt(grey, name, 4).int()).abs().max() <= 1


@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - ELSEWHERE))
def test_the_distance_from_real_clean_images_grows_with_severity(name, photographs):
    found = [difference(corrupt(photographs, name, severity), photographs) for severity in range(1, 6)]
    assert found[0] > 1
    assert all(a <= b + 0.05 for a, b in pairwise(found))  # motion blur 3 and 4 are equal but for a tail
    assert found[4] > 2 * found[0]


def test_frost_leaves_ever_less_of_real_images(photographs):
    clean = photographs.double().flatten(1)
    found = []
    for severity in range(1, 6):
        both = torch.stack([clean, corrupt(photographs, "frost", severity).double().flatten(1)])
        a, b = both - both.mean(2, keepdim=True)
        found.append(float(((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)).clamp(min=1e-9)).mean()))
    assert found == sorted(found, reverse=True)
    assert found[0] - found[4] > 0.05


def test_glass_disorders_more_in_two_rounds_than_in_one_and_blurs_more_within(photographs):
    out = [corrupt(photographs, "glass_blur", severity) for severity in range(1, 6)]
    far = [difference(images, photographs) for images in out]
    edges = [difference(images[..., 1:], images[..., :-1]) for images in out]
    assert min(far[3:]) > 1.5 * max(far[:3])
    assert edges[0] >= edges[1] > edges[2]
    assert edges[3] > edges[4]


def test_glass_loses_more_of_the_detail_of_an_image_with_severity(photographs):
    """Detail lost: 1 less the regression of the differences of neighbours on those of the clean image."""

    def detail(images):
        x = images.double()
        return torch.cat([(x[..., 1:, :] - x[..., :-1, :]).flatten(1), (x[..., 1:] - x[..., :-1]).flatten(1)], 1)

    clean = detail(photographs)
    left = [detail(corrupt(photographs, "glass_blur", severity)) for severity in range(1, 6)]
    lost = [float((1 - (clean * each).sum(1) / (clean**2).sum(1).clamp(min=1e-9)).mean()) for each in left]
    assert lost == sorted(lost)  # the blurs of severities 1 and 2 are too narrow to matter: they may be equal
    assert lost[4] > lost[0] + 0.2


def test_the_wobble_beyond_an_affine_map_grows_with_severity():
    ramp = (8 * torch.arange(32)).to(torch.uint8).expand(60, 1, 32, 32)  # a pixel's value says which column it was
    y, x = np.mgrid[10:22, 10:22].reshape(2, -1)
    affine = np.stack([x, y, np.ones_like(x)], 1)
    found = []
    for severity in range(1, 6):
        seen = corrupt(ramp, "elastic_transform", severity)[:, 0, 10:22, 10:22].reshape(60, -1).double().numpy() / 8
        rest = seen.T - affine @ np.linalg.lstsq(affine, seen.T, rcond=None)[0]
        found.append(float(np.sqrt((rest**2).mean())))
    assert found[0] < 0.05  # of a pixel: rounding alone
    assert found == sorted(found)
    assert found[4] > 0.3


@each_severity
def test_gaussian_noise_has_the_published_spread(severity):
    for side, sigmas in ((32, (0.04, 0.06, 0.08, 0.09, 0.10)), (96, (0.08, 0.12))):
        if severity <= len(sigmas):
            noise = corrupt(flat(128, 30, side=side), "gaussian_noise", severity).double() / 255 - 128 / 255
            assert float(noise.std()) == pytest.approx(sigmas[severity - 1], rel=0.02)
            assert abs(float(noise.mean())) < 1e-3


@each_severity
def test_shot_noise_keeps_the_mean_and_has_a_variance_in_proportion_to_it(severity):
    rate = (500, 250, 100, 75, 50)[severity - 1]
    for value in (40, 120):
        light = corrupt(flat(value, 30), "shot_noise", severity).double() / 255
        assert float(light.mean()) == pytest.approx(value / 255, abs=1e-3)
        assert float(light.var()) == pytest.approx(value / 255 / rate, rel=0.05)  # bytes hold about two photons at 500
    assert not corrupt(flat(0), "shot_noise", severity).any()


@each_severity
def test_impulse_noise_sets_the_published_share_to_black_and_white_and_keeps_the_rest(severity):
    for side, shares in ((32, (0.01, 0.02, 0.03, 0.05, 0.07)), (96, (0.03, 0.06, 0.09, 0.17, 0.27))):
        out = corrupt(flat(77, 10, side=side), "impulse_noise", severity)
        for value in (0, 255):
            low, high = binom.interval(1 - 1e-6, out.numel(), shares[severity - 1] / 2)
            assert low <= int((out == value).sum()) <= high
        assert set(out.unique().tolist()) == {0, 77, 255}


def mirrored(i, size):
    return -i if i < 0 else 2 * (size - 1) - i if i >= size else i


def slow_defocus(image, radius, softening, reach):
    """A disc, softened pixel by pixel, then summed pixel by pixel."""
    whole = int(radius) + reach
    kernel = {}
    for y in range(-whole, whole + 1):
        for x in range(-whole, whole + 1):
            for dy in range(-reach, reach + 1):
                for dx in range(-reach, reach + 1):
                    if (y - dy) ** 2 + (x - dx) ** 2 <= radius**2:
                        kernel[y, x] = kernel.get((y, x), 0) + math.exp(-(dy**2 + dx**2) / (2 * softening**2))
    total = sum(kernel.values())
    h, w = image.shape
    out = np.zeros((h, w))
    for i in range(h):
        for j in range(w):
            out[i, j] = sum(k * image[mirrored(i + y, h), mirrored(j + x, w)] for (y, x), k in kernel.items()) / total
    return out


@each_severity
def test_defocus_blur_agrees_with_a_sum_over_a_disc(severity):
    image = some(1, 1, 12, 16)
    expected = slow_defocus(image[0, 0].double().numpy(), *DISCS[severity - 1], 1)
    assert np.abs(corrupt(image, "defocus_blur", severity)[0, 0].numpy() - expected).max() <= 0.5 + 1e-9


def test_on_other_sizes_the_lengths_of_a_blur_are_scaled():
    small, large = some(1, 1, 64, 64), some(1, 1, 112, 112)
    expected = slow_defocus(small[0, 0].double().numpy(), 2 * DISCS[4][0], 2 * DISCS[4][1], 2)
    assert np.abs(corrupt(small, "defocus_blur", 5)[0, 0].numpy() - expected).max() <= 0.5 + 1e-9
    expected = slow_defocus(large[0, 0].double().numpy(), LARGE_DISCS[0][0] / 2, LARGE_DISCS[0][1] / 2, 1)
    assert np.abs(corrupt(large, "defocus_blur", 1)[0, 0].numpy() - expected).max() <= 0.5 + 1e-9


def test_a_streak_agrees_with_a_sum_along_a_line():
    image = some(2, 1, 9, 10).double().numpy()
    angles, radius, sigma = np.array([31.0, -110.0]), 3.0, 1.5
    found = streaked(image, angles, radius, sigma)
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(7)]
    for n, angle in enumerate(np.deg2rad(angles)):
        for y in range(9):
            for x in range(10):
                total = 0.0
                for i, weight in enumerate(weights):
                    row, column = round(y + i * math.sin(angle)), round(x + i * math.cos(angle))
                    total += weight * image[n, 0, min(max(row, 0), 8), min(max(column, 0), 9)]
                assert found[n, 0, y, x] == pytest.approx(total / sum(weights), abs=1e-9)


def test_motion_smears_a_point_within_45_degrees_of_the_horizontal():
    points = flat(0, 40, 1)
    points[:, :, 16, 16] = 255
    angles = []
    for image in corrupt(points, "motion_blur", 5)[:, 0]:
        y, x = image.nonzero().T - 16
        assert (y.abs() <= x.abs()).all()
        assert (x <= 0).all()
        angles.append(math.atan2(float((y * image[y + 16, x + 16]).sum()), -float((x * image[y + 16, x + 16]).sum())))
    assert np.std(angles) == pytest.approx(math.pi / 2 / math.sqrt(12), rel=0.3)


def test_zoom_blur_agrees_with_a_mean_over_zooms():
    image = some(1, 1, 8, 11)
    x = image[0, 0].double().numpy()
    for severity in (1, 4):
        zooms = [1.0, *(1 + i / 100 for i in range(5 * severity + 1))]
        expected = np.zeros_like(x)
        for zoom in zooms:
            for i in range(8):
                for j in range(11):
                    y, z = 3.5 + (i - 3.5) / zoom, 5 + (j - 5) / zoom
                    for row in range(8):
                        for column in range(11):
                            expected[i, j] += max(0, 1 - abs(y - row)) * max(0, 1 - abs(z - column)) * x[row, column]
        found = corrupt(image, "zoom_blur", severity)[0, 0].numpy()
        assert np.abs(found - expected / len(zooms)).max() <= 0.5 + 1e-9


def test_glass_moves_values_by_one_row_and_column_at_most():
    image = torch.arange(256).reshape(1, 1, 16, 16).to(torch.uint8)
    moved = corrupt(image.expand(20, -1, -1, -1), "glass_blur", 1)[:, 0].int()
    rows, columns = torch.arange(16)[:, None] - moved // 16, torch.arange(16) - moved % 16
    assert set(rows.unique().tolist()) == set(columns.unique().tolist()) == {0, 1}
    inner = torch.stack([rows, columns])[:, :, 1:, 1:].double()
    assert inner.mean((1, 2, 3)).tolist() == pytest.approx([0.5, 0.5], abs=0.03)
    assert float((inner[0] * inner[1]).mean()) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("name", sorted((FAMILIES["blur"] | FAMILIES["digital"]) - {"jpeg_compression"}))
@each_severity
def test_blurs_and_warps_keep_a_constant_image(name, severity):
    for side in (32, 96):
        images = torch.tensor([0, 90, 255], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(2, -1, side, side)
        assert torch.equal(corrupt(images, name, severity), images)


def test_plasma_agrees_with_displacing_midpoint_by_midpoint():
    rng = np.random.default_rng(1)
    noise, decay, size = rng.uniform(-1, 1, (2, 8, 8)), 1.7, 8
    for n in range(2):
        z = np.zeros((size, size))
        step, amplitude = size, 1.0
        while step > 1:
            half = step // 2
            for diagonal in (True, False):
                for y in range(0, size, half):
                    for x in range(0, size, half):
                        odd = (y // half) % 2, (x // half) % 2
                        if odd == (1, 1) and diagonal:
                            near = [
                                (y - half, x - half),
                                (y - half, x + half),
                                (y + half, x - half),
                                (y + half, x + half),
                            ]
                        elif sum(odd) == 1 and not diagonal:
                            near = [(y - half, x), (y + half, x), (y, x - half), (y, x + half)]
                        else:
                            continue
                        z[y, x] = sum(z[a % size, b % size] for a, b in near) / 4 + amplitude * noise[n, y, x]
            step, amplitude = half, amplitude / decay**2
        assert np.allclose(plasma(noise, decay)[n], (z - z.min()) / (z.max() - z.min()), atol=1e-12)


@each_severity
def test_fog_on_a_constant_image_runs_from_its_formula_without_cloud_to_that_with_most(severity):
    density = (0.2, 0.5, 0.75, 1.0, 1.5)[severity - 1]
    out = corrupt(flat(200, 4), "fog", severity).flatten(1)
    v = 200 / 255
    assert out.amin(1).tolist() == [round(255 * v * v / (v + density))] * 4
    assert out.amax(1).tolist() == [200] * 4
    assert not corrupt(flat(0), "fog", severity).any()


@each_severity
def test_snow_on_black_is_the_pale_ground_with_flakes_that_half_a_turn_does_not_change(severity):
    out = corrupt(flat(0, 30), "snow", severity)
    ground = round(255 * 0.5 * (0.05, 0.1, 0.1, 0.15, 0.2)[severity - 1])
    assert int(out.min()) in (ground - 1, ground)  # half of an odd number is rounded by a hair
    assert int(out.max()) > ground + 20
    assert (out.int() - out.flip(2, 3).int()).abs().max() <= 1
    assert torch.equal(out[:, 0], out[:, 2])


@each_severity
def test_frost_adds_the_same_bluish_ice_to_a_darkened_image(severity):
    kept, added = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    ice = corrupt(flat(0, 4), "frost", severity).double()
    assert (ice[:, 0] <= ice[:, 1]).all()
    assert (ice[:, 1] <= ice[:, 2]).all()
    assert 0.3 < float(ice[:, 2].mean()) / 255 / added < 0.7
    assert ice[:, 2].std() > 20 * added
    image = some(4)
    expected = (kept * image.double() + ice).clamp(max=255)
    assert (corrupt(image, "frost", severity).double() - expected).abs().max() <= 1


@each_severity
def test_brightness_agrees_with_raising_the_value_pixel_by_pixel(severity):
    for side, more in ((12, (0.05, 0.1, 0.15, 0.2, 0.3)), (88, (0.1, 0.2, 0.3, 0.4, 0.5))):
        image = some(1, 3, side, 12 if side == 12 else 88)
        image[0, :, 0, 0] = 0
        out = corrupt(image, "brightness", severity)
        for y in range(12):
            for x in range(12):
                hue, saturation, value = colorsys.rgb_to_hsv(*(image[0, :, y, x].double() / 255).tolist())
                lit = colorsys.hsv_to_rgb(hue, saturation, min(1, value + more[severity - 1]))
                assert out[0, :, y, x].tolist() == pytest.approx([255 * v for v in lit], abs=0.5 + 1e-9)


@each_severity
def test_contrast_agrees_with_a_loop(severity):
    kept = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    image = some(2, 3, 9, 8)
    out = corrupt(image, "contrast", severity)
    for channel, found in zip(
        image.flatten(0, 1).flatten(1).tolist(), out.flatten(0, 1).flatten(1).tolist(), strict=True
    ):
        mean = sum(channel) / len(channel)
        assert found == pytest.approx([kept * v + (1 - kept) * mean for v in channel], abs=0.5 + 1e-9)


@each_severity
def test_pixelate_agrees_with_a_loop_over_cells_and_with_a_box_filter(severity):
    image = some(1, 3, 20, 33)
    out = corrupt(image, "pixelate", severity)[0]
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    down, across = int(20 * share), int(33 * share)
    for i in range(down):
        for j in range(across):
            rows = [y for y in range(20) if i <= (y + 0.5) * down / 20 < i + 1]
            columns = [x for x in range(33) if j <= (x + 0.5) * across / 33 < j + 1]
            for channel, found in zip(image[0].tolist(), out.tolist(), strict=True):
                mean = sum(channel[y][x] for y in rows for x in columns) / (len(rows) * len(columns))
                assert all(abs(found[y][x] - mean) <= 0.5 + 1e-9 for y in rows for x in columns)
    image = some(1)[0]
    box = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).resize(
        [int(32 * share)] * 2, Image.Resampling.BOX
    )
    box = np.asarray(box.resize((32, 32), Image.Resampling.BOX)).transpose(2, 0, 1).astype(int)
    assert np.abs(corrupt(image[None], "pixelate", severity)[0].numpy().astype(int) - box).max() <= 1  # rounded twice


@each_severity
def test_jpeg_compression_is_that_of_pillow(severity):
    for side, qualities in ((32, (80, 65, 58, 50, 40)), (96, (25, 18, 15, 10, 7))):
        for c in (1, 3):
            images = some(2, c, side, side)
            for image, found in zip(images, corrupt(images, "jpeg_compression", severity), strict=True):
                file = io.BytesIO()
                hand = (
                    image.permute(1, 2, 0).squeeze(2).numpy() if c == 1 else image.permute(1, 2, 0).contiguous().numpy()
                )
                Image.fromarray(hand).save(file, format="jpeg", quality=qualities[severity - 1])
                read = torch.from_numpy(np.array(Image.open(file)))
                assert torch.equal(found, read[None] if c == 1 else read.permute(2, 0, 1))


def test_bad_input_is_answered_in_one_sentence():
    images = some(1)
    for bad, kind, said in [
        (images.float(), TypeError, r"images must be uint8, from 0 to 255; got float32\. Multiply by 255"),
        (images.long(), TypeError, r"images must be uint8, from 0 to 255; got int64\.$"),
        (images[0], ValueError, r"images must have shape \(n, c, h, w\) with c of 1 or 3; got \(3, 32, 32\)\.$"),
        (
            images.permute(0, 2, 3, 1),
            ValueError,
            r"got \(1, 32, 32, 3\)\. Did you mean images\.permute\(0, 3, 1, 2\)\?",
        ),
        (images[..., :7], ValueError, r"images must be at least 8 x 8 pixels; got 32 x 7\."),
    ]:
        with pytest.raises(kind, match=said):
            corrupt(bad, "fog", 1)
        with pytest.raises(kind, match=said):
            CORRUPTIONS["fog"](bad, 1)
    for severity in (0, 6, True):
        for name in CORRUPTIONS:
            with pytest.raises(ValueError, match=f"severity must be a whole number from 1 to 5; got {severity}"):
                CORRUPTIONS[name](images, severity)
        with pytest.raises(ValueError, match="severity must be a whole number from 1 to 5"):
            corrupt(images, "fog", severity)
    with pytest.raises(KeyError, match=r"has no 'gausian_noise'\. Did you mean 'gaussian_noise'"):
        corrupt(images, "gausian_noise", 1)
