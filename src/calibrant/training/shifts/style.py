"""Images -> the same things in the colours and textures of other images."""

import torch
from torch import Tensor

CHUNK = 1 << 20  # values in a chunk: a float64 spectrum of it, of which three are held, takes 8 MB
FAINT = 1e-9  # a share of the mean's amplitude, below which an amplitude is rounding, and its phase chance


def restyle(images: Tensor, *, strength: float = 1.0, seed: int = 0) -> Tensor:
    r"""Give each image the Fourier amplitudes of another image of the batch; it keeps its own phases.

    .. math:: x' = \mathcal F^{-1}\bigl(((1 - s)\,|\mathcal F x| + s\,|\mathcal F y|)\, e^{i \angle \mathcal F x}\bigr)

    with :math:`y` the other image and :math:`s` the ``strength``, from 0, the images themselves, to 1. The phases hold
    where things are and what shape they have, the amplitudes hold the mean colour, the contrast and the texture. Each
    channel takes the amplitudes of the same channel. A frequency that an image does not have has no phase, and stays
    away: a flat image only changes its colour.

    Images (n, c, h, w) are uint8 from 0 to 255, or floating point from 0 to 1. The result is clipped to that range and
    has the same dtype; clipping changes the phases a little. Who takes from whom is one seeded cycle through all
    images, so nobody takes from itself, and an image's style depends on the number of images: pass the whole set at
    once. Nothing random is touched.

    At strength 1 the shift is severe: of 32 x 32 photographs, people still recognise perhaps half. At 0.5 nearly all
    are recognisable, and colours and textures clearly differ.

    This is a stand-in for when no stylised images are at hand. It is not the Stylized-ImageNet of Geirhos et al.
    (ICLR 2019), which paints photographs in the style of artworks by a network with adaptive instance normalisation:
    nothing here is learned, textures come from photographs of the same set, and they spread over the whole image.

    Reference: Yang & Soatto, CVPR 2020 (Fourier domain adaptation); Xu et al., CVPR 2021 (Fourier-based framework).

    Example:
        >>> images = torch.stack([torch.full((3, 8, 8), 0.25), torch.full((3, 8, 8), 0.75)])
        >>> restyle(images)[:, 0, 0, 0], restyle(images, strength=0.5)[:, 0, 0, 0]
        (tensor([0.7500, 0.2500]), tensor([0.5000, 0.5000]))
    """
    _check(images, strength)
    images = images.detach()
    top = 255.0 if images.dtype == torch.uint8 else 1.0
    givers = _givers(len(images), seed).to(images.device)
    rows = max(1, CHUNK // images.shape[1:].numel())
    result = torch.empty_like(images)
    for start in range(0, len(images), rows):
        part = slice(start, start + rows)
        mixed = _mixed(images[part].double(), images[givers[part]].double(), strength).clamp(0.0, top)
        result[part] = mixed.round() if images.dtype == torch.uint8 else mixed
    return result


def _mixed(content: Tensor, style: Tensor, strength: float) -> Tensor:
    """Return what the formula says, not clipped: the content plus ``strength`` times what changes, exact at 0."""
    spectrum = torch.fft.rfft2(content)
    amplitude = spectrum.abs()
    faint = amplitude <= FAINT * amplitude[..., :1, :1]  # no amplitude of a positive image exceeds that of its mean
    faint[..., 0, 0] = False  # the mean's own phase is 0, also where the mean is
    phase = torch.polar(torch.ones_like(amplitude), spectrum.angle())
    change = (torch.fft.rfft2(style).abs() - amplitude).masked_fill(faint, 0.0)
    return content + strength * torch.fft.irfft2(change * phase, s=content.shape[-2:])


def _givers(n: int, seed: int) -> Tensor:
    """Return the row from which each of n rows takes its style: one cycle, so no row is its own."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    givers = torch.empty_like(order)
    givers[order] = order.roll(1)
    return givers


def _check(images: Tensor, strength: float) -> None:
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a torch tensor; got {type(images).__name__}. Did you mean torch.from_numpy?")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise TypeError(f"images must be uint8 or floating point; got {str(images.dtype).removeprefix('torch.')}.")
    if images.ndim != 4 or images.numel() == 0:
        raise ValueError(f"images must have shape (n, c, h, w), none of them 0; got {tuple(images.shape)}.")
    if len(images) < 2:
        raise ValueError("images must be at least 2, so that one takes the style of another; got 1.")
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must lie in [0, 1]; got {strength}.")
    if images.dtype != torch.uint8:
        low, high = (float(edge) for edge in images.detach().aminmax())
        if not (low >= 0 and high <= 1):  # also where one is NaN
            raise ValueError(
                f"images must lie in [0, 1] if they are floating point; got [{low:.3g}, {high:.3g}]. "
                "Restyle pixels before they are normalised, and divide bytes by 255."
            )
