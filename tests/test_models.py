"""Every model: its number of parameters, features and head, gradients, independence of rows, memory format, errors."""

import itertools
import subprocess
import sys
import types
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from calibrant.registry import MODELS
from calibrant.training.models.build import make
from calibrant.training.models.densenets import Dense
from calibrant.training.models.resnets import Halved, basic, bottleneck, projection
from calibrant.training.models.transformers import Attention, PostNorm, PreNorm
from calibrant.training.models.wide_resnets import PreActivation

# Parameters, counted by hand: a convolution without bias, a norm, a linear layer.


def conv(inputs, outputs, size=3):
    return inputs * outputs * size**2


def norm(width):
    return 2 * width


def linear(inputs, outputs):
    return (inputs + 1) * outputs


def thin(n):
    pairs = (2 * n - 1) * (conv(16, 16) + norm(16)) + conv(16, 16) + norm(16)
    pairs += conv(16, 32) + conv(32, 64) + (2 * n - 1) * (conv(32, 32) + conv(64, 64)) + 2 * n * (norm(32) + norm(64))
    return conv(3, 16) + norm(16) + pairs + linear(64, 10)


def pre_activated(n, factor):
    total, inputs = conv(3, 16), 16
    for width in (16 * factor, 32 * factor, 64 * factor):
        total += norm(inputs) + conv(inputs, width) + norm(width) + conv(width, width)
        total += conv(inputs, width, 1) if inputs != width else 0
        total += (n - 1) * 2 * (norm(width) + conv(width, width))
        inputs = width
    return total + norm(inputs) + linear(inputs, 10)


def wide_post_activated():
    total, inputs = conv(3, 16) + norm(16), 16
    for width in (160, 320, 640):
        total += conv(inputs, width) + conv(inputs, width, 1) + norm(width) + 7 * conv(width, width) + 8 * norm(width)
        inputs = width
    return total + linear(640, 10)


def basic_four():
    total = conv(3, 64) + norm(64) + 4 * (conv(64, 64) + norm(64))
    for width in (128, 256, 512):
        total += conv(width // 2, width) + conv(width // 2, width, 1) + 3 * conv(width, width) + 5 * norm(width)
    return total + linear(512, 10)


def bottleneck_four():
    total, inputs = conv(3, 64) + norm(64), 64
    for inner, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        total += conv(inputs, 4 * inner, 1) + norm(4 * inner)
        for _ in range(count):
            total += conv(inputs, inner, 1) + conv(inner, inner) + conv(inner, 4 * inner, 1) + 2 * norm(inner)
            total += norm(4 * inner)
            inputs = 4 * inner
    return total + linear(2048, 10)


def dense():
    total, width = conv(3, 64), 64
    for count, halved in ((6, True), (12, True), (24, True), (16, False)):
        for _ in range(count):
            total += norm(width) + conv(width, 128, 1) + norm(128) + conv(128, 32)
            width += 32
        if halved:
            total += norm(width) + conv(width, width // 2, 1)
            width //= 2
    return total + norm(width) + linear(width, 10)


def vgg():
    layers = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256)]
    return sum(conv(*layer) + norm(layer[1]) for layer in layers) + linear(256, 10)


def transformer(depth, width):
    attention = linear(width, 3 * width) + linear(width, width)
    return depth * (attention + linear(width, 4 * width) + linear(4 * width, width) + 2 * norm(width))


def bert(depth, width, vocabulary, length):
    rows = vocabulary + 1 + length + 1
    return transformer(depth, width) + rows * width + norm(width) + linear(width, width) + linear(width, 10)


def vit():
    rows = 1 + 1 + 14 * 14
    return transformer(12, 384) + linear(16 * 16 * 3, 384) + rows * 384 + norm(384) + linear(384, 10)


def vgg_with_dropout():
    widths = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    layers = itertools.pairwise([3, *widths])
    return sum(conv(*layer) + layer[1] + norm(layer[1]) for layer in layers) + linear(512, 512) + linear(512, 10)


CONVNET = conv(1, 32) + 32 + conv(32, 64) + 64 + linear(9216, 128) + linear(128, 10)
LENET = conv(1, 6, 5) + 6 + conv(6, 16, 5) + 16 + linear(400, 120) + linear(120, 84) + linear(84, 10)
TEXT = {"vocabulary": 50, "length": 9}
TINY = {"channels": 3, "side": 8}


@dataclass(frozen=True)
class Row:
    name: str
    width: int  # of the features
    parameters: int  # at k = 10 and the default images, or the texts of TEXT
    inputs: dict[str, int]  # what it is run on here


ROWS = [
    Row("resnet20", 64, thin(3), TINY),
    Row("resnet32", 64, thin(5), TINY),
    Row("resnet44", 64, thin(7), TINY),
    Row("resnet56", 64, thin(9), TINY),
    Row("resnet110", 64, thin(18), TINY),
    Row("preresnet56", 64, pre_activated(9, 1), TINY),
    Row("wrn_28_10", 640, pre_activated(4, 10), TINY),
    Row("wrn_26_10", 640, wide_post_activated(), TINY),
    Row("resnet18", 512, basic_four(), {"channels": 3, "side": 72}),
    Row("resnet50", 2048, bottleneck_four(), TINY),
    Row("densenet121", 1024, dense(), {"channels": 1, "side": 8}),
    Row("vgg_small", 256, vgg(), {"channels": 1, "side": 28}),
    Row("vgg16", 512, vgg_with_dropout(), {"channels": 3, "side": 32}),
    Row("convnet", 128, CONVNET, {"channels": 1, "side": 28}),
    Row("lenet", 84, LENET, {"channels": 1, "side": 28}),
    Row("mlp", 128, linear(64, 128) + linear(128, 10), {"channels": 1, "side": 8}),
    Row("vit_small", 384, vit(), TINY),
    Row("text_cnn", 300, 50 * 300 + sum(linear(300 * size, 100) for size in (3, 4, 5)) + linear(300, 10), TEXT),
    Row("bert_small", 512, bert(4, 512, **TEXT), TEXT),
    Row("bert_base", 768, bert(12, 768, **TEXT), TEXT),
]
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def counted(name, k=10, **sizes):
    with torch.device("meta"):  # nothing is stored
        return sum(p.numel() for p in MODELS[name](k, **sizes).parameters())


def inputs_of(row, n=4):
    g = torch.Generator().manual_seed(7)
    if "vocabulary" in row.inputs:
        tokens = torch.randint(1, row.inputs["vocabulary"], (n, row.inputs["length"]), generator=g)
        tokens[0, 4:] = 0
        return tokens
    return torch.randn(n, row.inputs["channels"], row.inputs["side"], row.inputs["side"], generator=g)


def roughly(name, k, **sizes):
    """Make a model with weights that are quick to draw: to draw a cut normal 86 million times takes seconds."""
    with torch.device("meta"):
        model = MODELS[name](k, **sizes)
    model.to_empty(device="cpu")
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in model.parameters():
            weights.uniform_(-0.03, 0.03, generator=g).add_(weights.ndim == 1)
    return model


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: row.name)
def made(request):
    """One model at a time: together they would fill the memory."""
    row = request.param
    return row, (roughly if row.name in {"bert_base", "vit_small"} else make)(row.name, 10, **row.inputs)


def close(left, right):
    return torch.allclose(left, right, rtol=1e-4, atol=1e-4 * float(right.abs().max()))


def test_every_model_has_a_row():
    assert sorted(row.name for row in ROWS) == list(MODELS)


@each_row
def test_the_number_of_parameters_is_as_counted_by_hand(row):
    sizes = row.inputs if row.inputs is TEXT else {}
    assert counted(row.name, **sizes) == row.parameters


@pytest.mark.parametrize(
    ("name", "k", "side", "published"),
    [
        *(("resnet20", 10, 32, 0.27), ("resnet32", 10, 32, 0.46), ("resnet44", 10, 32, 0.66)),
        *(("resnet56", 10, 32, 0.85), ("resnet110", 10, 32, 1.73), ("wrn_28_10", 10, 32, 36.5)),
        *(("resnet18", 10, 32, 11.17), ("resnet50", 10, 32, 23.52), ("densenet121", 10, 32, 6.96)),
        *(("resnet18", 1000, 224, 11.689512), ("resnet50", 1000, 224, 25.557032)),
        *(("densenet121", 1000, 224, 7.978856), ("vit_small", 1000, 224, 22.050664), ("lenet", 10, 28, 0.061706)),
    ],
)
def test_the_number_of_parameters_is_the_published_one(name, k, side, published):
    digits = len(str(published).partition(".")[2])
    channels = 1 if name == "lenet" else 3
    assert round(counted(name, k, channels=channels, side=side) / 1e6, digits) == published


def test_a_hundred_classes_add_to_the_head_only():
    assert counted("resnet32", 100) == thin(5) + 90 * 65 == 470_004


def test_berts_are_as_large_as_published_but_for_the_two_segments():
    sizes = {"vocabulary": 30_522 - 1, "length": 512 - 1}  # the token before the text is one of theirs
    assert counted("bert_base", **sizes) == 109_482_240 - 2 * 768 + linear(768, 10)
    assert counted("bert_small", **sizes) == 28_763_648 - 2 * 512 + linear(512, 10)


def test_logits_are_what_the_head_reads_from_the_features(made):
    row, model = made
    model.eval()
    inputs = inputs_of(row)
    with torch.no_grad():
        features, logits = model.features(inputs), model(inputs)
        assert isinstance(model.head, nn.Linear)
        assert features.shape == (4, row.width)
        assert logits.shape == (4, 10)
        assert torch.equal(model.head(features), logits)
        assert torch.equal(model(inputs), logits)  # nothing is drawn
        assert bool(logits.isfinite().all())
        assert float(logits.std(0).min()) > 0  # it looks at its inputs


def test_a_row_does_not_depend_on_the_others_in_evaluation(made):
    row, model = made
    model.eval()
    inputs = inputs_of(row)
    with torch.no_grad():
        assert close(model(inputs[1:2]), model(inputs)[1:2])


def test_bfloat16_autocast_gives_nearly_the_same(made):
    row, model = made
    model.eval()
    inputs = inputs_of(row, 2)
    with torch.no_grad():
        exact = model(inputs)
        with torch.autocast("cpu", torch.bfloat16):
            half = model(inputs)
    assert half.dtype == torch.bfloat16
    assert float((half.float() - exact).abs().max()) < 0.1 * float(exact.abs().max())


def test_the_gradient_reaches_every_parameter(made):
    row, model = made
    model.train()
    model.zero_grad()
    labels = torch.tensor([0, 1, 2, 3])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        F.cross_entropy(model(inputs_of(row)), labels).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert float(parameter.grad.abs().max()) > 0, name
    model.zero_grad()


def test_every_layer_keeps_channels_last(made):
    row, model = made
    if row.inputs is TEXT or row.name in {"mlp", "vit_small"}:
        return
    model.eval().to(memory_format=torch.channels_last)
    seen, lost = [], []

    def look(layer, _, output):
        if output.ndim == 4 and output.shape[2] > 1:  # a single pixel has every format
            seen.append(layer)
            lost.extend([] if output.is_contiguous(memory_format=torch.channels_last) else [layer])

    hooks = [layer.register_forward_hook(look) for layer in model.modules()]
    with torch.no_grad():
        model(inputs_of(row, 2).to(memory_format=torch.channels_last))
    for hook in hooks:
        hook.remove()
    assert len(seen) >= 6
    assert not lost


def test_the_shortcut_without_parameters_takes_every_second_pixel_and_adds_zeros():
    images = torch.arange(2 * 3 * 4 * 4.0).reshape(2, 3, 4, 4).to(memory_format=torch.channels_last)
    found = Halved()(images)
    assert found.shape == (2, 6, 2, 2)
    assert found.is_contiguous(memory_format=torch.channels_last)
    for n, c, i, j in itertools.product(range(2), range(6), range(2), range(2)):
        assert float(found[n, c, i, j]) == (float(images[n, c, 2 * i, 2 * j]) if c < 3 else 0.0)


def weighed(block):
    """Give a block weights and running means of its own; return it and its layers as functions, in order."""
    g = torch.Generator().manual_seed(2)
    state = {key: torch.rand(value.shape, generator=g) + 0.1 - (value.ndim == 4) * 0.6 for key, value in named(block)}
    block.load_state_dict(state, strict=False)
    convs = iter(state[key] for key, value in named(block) if value.ndim == 4)
    keys = [key.removesuffix("running_mean") for key in state if key.endswith("running_mean")]
    norms = iter([state[key + part] for part in ("running_mean", "running_var", "weight", "bias")] for key in keys)

    def conv(x, stride, size):
        return F.conv2d(x, next(convs), None, stride, size // 2)

    def norm(x):
        return F.batch_norm(x, *next(norms))

    return block.eval(), conv, norm


def named(block):
    return [(key, value) for key, value in block.state_dict().items() if value.ndim > 0]


def basic_block(x, conv, norm):
    inner = norm(conv(F.relu(norm(conv(x, 2, 3))), 1, 3))
    return F.relu(inner + norm(conv(x, 2, 1)))


def bottleneck_block(x, conv, norm):
    inner = F.relu(norm(conv(F.relu(norm(conv(x, 1, 1))), 2, 3)))
    return F.relu(norm(conv(inner, 1, 1)) + norm(conv(x, 2, 1)))


def pre_activated_block(x, conv, norm):
    active = F.relu(norm(x))
    return conv(F.relu(norm(conv(active, 2, 3))), 1, 3) + conv(active, 2, 1)


def kept_block(x, conv, norm):
    return x + conv(F.relu(norm(conv(F.relu(norm(x)), 1, 3))), 1, 3)


def dense_block(x, conv, norm):
    return torch.cat((x, conv(F.relu(norm(conv(F.relu(norm(x)), 1, 1))), 1, 3)), 1)


@pytest.mark.parametrize(
    ("block", "formula"),
    [
        (lambda: basic(4, 8, 2, projection), basic_block),
        (lambda: bottleneck(4, 8, 2, projection), bottleneck_block),
        (lambda: PreActivation(4, 8, 2, 0.0), pre_activated_block),
        (lambda: PreActivation(4, 4, 1, 0.0), kept_block),
        (lambda: Dense(4), dense_block),
    ],
    ids=["basic", "bottleneck", "pre_activated", "kept", "dense"],
)
def test_a_block_is_its_formula(block, formula):
    images = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(1))
    kept = images.clone()
    with torch.random.fork_rng(devices=[]):
        found, conv, norm = weighed(block())
    assert torch.allclose(found(images), formula(images, conv, norm), atol=1e-5)
    assert torch.equal(images, kept)  # what is done in place is done to its own tensors


COMPILED = """
import torch
from calibrant.training.models.densenets import Dense
from calibrant.training.models.resnets import Halved
from calibrant.training.models.text_cnn import Windows
from calibrant.training.models.transformers import Encoder, Patches
from calibrant.training.models.wide_resnets import PreActivation

images = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
tokens = torch.tensor([[3, 4, 5, 0, 0]])
text, image = (Windows(torch.nn.Embedding(9, 4)), Encoder(9, 5, 1, 8, 2)), (Dense(4), PreActivation(4, 8, 2, 0.0))
for layer in (Halved(), *image, Patches(4, 4, 4, 1, 8, 2), *text):
    inputs = tokens if layer in text else images
    with torch.no_grad():
        compiled = torch.compile(layer.eval(), backend="aot_eager_decomp_partition", fullgraph=True)(inputs)
    kept = compiled.ndim == 2 or compiled.is_contiguous(memory_format=torch.channels_last)
    print(type(layer).__name__, torch.allclose(compiled, layer(inputs), atol=1e-5), kept)
"""


def test_everything_compiles_as_one_graph_that_keeps_channels_last():
    # Elsewhere: the checks of shapes cannot be compiled.
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    names = ("Halved", "Dense", "PreActivation", "Patches", "Windows", "Encoder")
    assert done.stdout.splitlines() == [f"{name} True True" for name in names]


@pytest.mark.parametrize("name", ["lenet", "vgg_small", "mlp", "convnet"])
@pytest.mark.parametrize(("channels", "side"), [(1, 8), (1, 28), (3, 32)])
def test_small_networks_take_digits_and_small_images(name, channels, side):
    model = make(name, 7, channels=channels, side=side)
    assert model(torch.zeros(2, channels, side, side)).shape == (2, 7)


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_the_stem_reduces_large_images_only(name):
    def cells(side):
        with torch.device("meta"):
            model = MODELS[name](10, side=side)
            pools = [layer for layer in model.modules() if isinstance(layer, nn.AdaptiveAvgPool2d)]
            pools[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[-1]))
            model(torch.zeros(2, 3, side, side))

    seen = []
    for side in (64, 72):
        cells(side)
    assert seen == [8, 3 if name == "resnet18" else 2]


# Transformers and the text network against torch's own layers and plain loops.


@pytest.mark.parametrize("block", [PostNorm, PreNorm])
def test_a_transformer_block_is_that_of_torch(block):
    g = torch.Generator().manual_seed(3)
    ours = block(12, 3, 48).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g) / 2)
    after = block is PostNorm
    theirs = nn.TransformerEncoderLayer(
        12, 3, 48, activation="gelu", batch_first=True, norm_first=not after, layer_norm_eps=1e-12 if after else 1e-6
    ).eval()
    names = {
        "attention.qkv.": "self_attn.in_proj_",
        "attention.proj.": "self_attn.out_proj.",
        "layers.0.": "linear1.",
        "layers.2.": "linear2.",
        "first_norm.": "norm1.",
        "second_norm.": "norm2.",
    }
    state = {their + kind: ours.state_dict()[our + kind] for our, their in names.items() for kind in ("weight", "bias")}
    theirs.load_state_dict(state)
    hidden = torch.randn(2, 5, 12, generator=g)
    real = torch.tensor([[True, True, True, False, False], [True] * 5])
    with torch.enable_grad():  # without gradients torch takes a fused path
        if after:
            found, expected = ours(hidden, real[:, None, None, :]), theirs(hidden, src_key_padding_mask=~real)
            assert torch.allclose(found[real], expected[real], atol=1e-5)
        else:
            assert torch.allclose(ours(hidden), theirs(hidden), atol=1e-5)


def test_attention_drops_only_in_training():
    layer = Attention(8, 2, dropout=0.5)
    hidden = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(layer.eval()(hidden), layer(hidden))
    with torch.random.fork_rng(devices=[]):
        assert not torch.equal(layer.train()(hidden), layer(hidden))


def test_state_dicts_with_the_old_names_of_the_projections_load():
    model, other = (make("bert_small", 3, vocabulary=9, length=5, seed=seed).eval() for seed in (0, 1))
    old = {key.replace(".qkv.", ".read.").replace(".proj.", ".write."): v for key, v in model.state_dict().items()}
    assert sum(".read." in key or ".write." in key for key in old) == 4 * 4
    other.load_state_dict(old)
    tokens = torch.tensor([[2, 3, 4, 0, 0]])
    with torch.no_grad():
        assert torch.equal(other(tokens), model(tokens))
    with pytest.raises(RuntimeError, match=r"body\.blocks\.0\.attention\.reads"):
        other.load_state_dict({**old, "body.blocks.0.attention.reads.weight": torch.zeros(1)})


def test_the_text_network_is_the_largest_window_of_each_filter():
    model = make("text_cnn", 3, vocabulary=20, length=7, seed=1).eval()
    tokens = [[4, 5, 6, 7, 8, 9, 10], [3, 1, 0, 0, 0, 0, 0], [0] * 7]
    found = model.features(torch.tensor(tokens))
    vectors, filters = model.body.words.weight, model.body.filters
    for row, text in enumerate(tokens):
        words = [vectors[token] for token in text if token != 0]
        blank = [torch.zeros(300)] * 4
        for which, size in enumerate((3, 4, 5)):
            answers = [torch.zeros(100)]
            for i in range(len(words)):
                window = torch.stack([*words, *blank][i : i + size])  # (size, 300)
                answers.append(
                    torch.einsum("owt,tw->o", filters[which].weight, window).add(filters[which].bias).clamp_min(0)
                )
            assert torch.allclose(found[row, 100 * which : 100 * which + 100], torch.stack(answers).amax(0), atol=1e-5)


def test_word_vectors_given_are_those_used_and_stay_as_they_are():
    given = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    kept = given.clone()
    model = MODELS["text_cnn"](3, vocabulary=20, length=7, embeddings=given)
    assert torch.equal(model.body.words.weight, given)
    with torch.no_grad():
        model.body.words.weight.zero_()
    assert torch.equal(given, kept)
    with pytest.raises(ValueError, match=r"^embeddings must have shape \(21, width\); got \(20, 50\)\.$"):
        MODELS["text_cnn"](3, vocabulary=21, length=7, embeddings=given)


@pytest.mark.parametrize("name", ["text_cnn", "bert_small"])
def test_padding_changes_nothing_and_words_do(name):
    model = make(name, 5, vocabulary=30, length=12).eval()
    texts = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0], [0, 0, 0, 0]])
    with torch.no_grad():
        short, long = model(texts), model(F.pad(texts, (0, 8)))
        other = model(torch.tensor([[5, 6, 7, 9]]))
    assert torch.allclose(short, long, atol=1e-5)
    assert bool(short.isfinite().all())
    assert not torch.allclose(short[:1], other, atol=1e-5)


# Making.


@pytest.mark.parametrize("name", ["resnet20", "lenet", "text_cnn"])
def test_the_weights_follow_from_the_seed_and_nothing_else_is_drawn(name):
    sizes = next(row.inputs for row in ROWS if row.name == name)
    before = torch.get_rng_state()
    first, again, other = (make(name, 3, **sizes, seed=seed).state_dict() for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_weights_start_as_the_papers_say():
    model = make("resnet18", 10, channels=3, side=32)
    convs = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    for layer in convs[1:]:
        fan_out = layer.out_channels * layer.kernel_size[0] ** 2
        assert abs(float(layer.weight.detach().std()) / (2 / fan_out) ** 0.5 - 1) < 0.05
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert all(bool((layer.weight == 1).all()) and bool((layer.bias == 0).all()) for layer in norms)
    for name, weights in make("bert_small", 10, **TEXT).state_dict().items():
        if weights.ndim > 1:
            assert float(weights.abs().max()) <= 0.04, name
            assert abs(float(weights.std()) - 0.0176) < 0.001, name  # of a normal of 0.02, cut at two deviations
        else:
            assert bool((weights == (1 if name.endswith("norm.weight") else 0)).all()), name


def test_dropout_of_a_wide_network_is_off_unless_asked_for():
    with torch.device("meta"):
        plain, dropped = MODELS["wrn_28_10"](10), MODELS["wrn_28_10"](10, dropout=0.3)
    assert not [layer for layer in plain.modules() if isinstance(layer, nn.Dropout)]
    assert [layer.p for layer in dropped.modules() if isinstance(layer, nn.Dropout)] == [0.3] * 12
    with pytest.raises(ValueError, match=r"^dropout must lie in \[0, 1\); got 1\.0\.$"):
        MODELS["wrn_28_10"](10, dropout=1.0)


def test_dropout_of_confidnets_networks_is_where_their_authors_have_it():
    with torch.device("meta"):
        large, small = MODELS["vgg16"](10), MODELS["convnet"](10)
    kinds = {nn.Conv2d: "c", nn.Dropout: "d", nn.MaxPool2d: "m", nn.BatchNorm2d: "n", nn.ReLU: "r", nn.Linear: "l"}

    def order(model):
        return "".join(kinds.get(type(layer), "") for layer in model.modules())

    assert order(large) == "crndcrnm" * 2 + "crndcrndcrnm" * 3 + "dlrd" + "l"
    assert [layer.p for layer in large.modules() if isinstance(layer, nn.Dropout)] == [0.3, *[0.4] * 7, 0.5, 0.5]
    assert order(small) == "crcrmd" + "lrd" + "l"
    assert [layer.p for layer in small.modules() if isinstance(layer, nn.Dropout)] == [0.25, 0.5]


@pytest.mark.parametrize("name", ["vgg16", "convnet"])
def test_networks_with_dropout_draw_anew_in_training_and_read_other_sides(name):
    model = make(name, 3, channels=1, side=64)
    images = torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        first, second = model.features(images), model.features(images)
    assert not torch.equal(first, second)
    assert float((model.eval().features(images) >= 0).float().mean()) == 1.0  # what ReLU leaves


IMAGES = {"channels": 3, "side": 32}


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        (
            "resnet20",
            TEXT,
            r"^name must be a model that takes tokens; 'resnet20' takes images\. Choose one of bert_base,",
        ),
        ("timm:resnet18", TEXT, r"^name must be a model that takes tokens; 'timm:resnet18' takes images\."),
        ("text_cnn", IMAGES, r"^name must be a model that takes images; 'text_cnn' takes tokens\. Choose one of conv"),
        ("resnet20", {}, r"^channels and side must be given for images, or vocab.*; got channels=0, side=0, vocab"),
        (
            "resnet20",
            {"channels": 3},
            r"^channels and side must be given for images, or vocab.*; got channels=3, side=0",
        ),
        ("resnet20", {**TEXT, **IMAGES}, r"^channels and side must be given for images, or vocabulary and length for"),
        ("resnet20", {"channels": 3, "side": 4}, r"^side must be at least 8 pixels; got 4\."),
        ("vgg16", {"channels": 1, "side": 28}, r"^side must be at least 32 pixels for five halvings; got 28\. Pad the"),
        ("mlp", {"channels": -1, "side": 8}, r"^channels must be at least 1; got -1\."),
        ("vit_small", {"channels": 3, "side": 30}, r"^side must be a multiple of the patch of 4 pixels; got 30\."),
        ("text_cnn", {"vocabulary": 1, "length": 9}, r"^vocabulary must be at least 2, padding and the unknown word"),
        ("bert_small", {"vocabulary": 9, "length": -1}, r"^length must be at least 1 token; got -1\."),
    ],
)
def test_bad_sizes_get_one_sentence(name, sizes, message):
    with pytest.raises(ValueError, match=message):
        make(name, 10, **sizes)


def test_bad_names_classes_and_lengths_get_one_sentence():
    with pytest.raises(KeyError, match=r"calibrant\.training\.models has no 'resnet33'\. Did you mean 'resnet"):
        make("resnet33", 10, **IMAGES)
    with pytest.raises(ValueError, match=r"^k must be a number of classes, at least 1; got 0\.$"):
        make("mlp", 0, **IMAGES)
    with torch.device("meta"):
        model, tokens = MODELS["bert_small"](2, vocabulary=9, length=4), torch.ones(1, 5, dtype=torch.long)
    with pytest.raises(ValueError, match=r"^tokens must be at most 4 long, as the model was made; got 5\. Cut them\.$"):
        model(tokens)


class Pretend(nn.Module):
    """What timm returns for num_classes=0, as far as it is used."""

    def __init__(self, channels, width, wider=None):
        super().__init__()
        self.layer = nn.Conv2d(channels, wider or width, 3)
        self.num_features = width
        if wider:
            self.head_hidden_size = wider

    def forward(self, images):
        return self.layer(images).mean((2, 3))


@pytest.fixture
def asked(monkeypatch):
    """Stand in for timm and give back what it was asked."""
    asked = []

    def create_model(name, **options):
        asked.append((name, options))
        return Pretend(options["in_chans"], 6, 9 if name == "mobile" else None)

    pretend = types.ModuleType("timm")
    pretend.is_model = lambda name: name in {"plain", "mobile", "fixed"}
    pretend.list_models = lambda: ["plain", "mobile", "fixed"]
    pretend.get_pretrained_cfg = lambda name: types.SimpleNamespace(fixed_input_size=name == "fixed")
    pretend.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", pretend)
    return asked


@pytest.mark.parametrize(
    ("name", "width", "more"), [("plain", 6, {}), ("mobile", 9, {}), ("fixed", 6, {"img_size": 12})]
)
def test_a_network_of_timm_has_features_and_a_head(asked, name, width, more):
    before = torch.get_rng_state()
    model, again = (make(f"timm:{name}", 4, channels=2, side=12, seed=1) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert asked[0] == (name, {"pretrained": False, "num_classes": 0, "in_chans": 2, **more})
    images = torch.randn(3, 2, 12, 12, generator=torch.Generator().manual_seed(0))
    assert model.features(images).shape == (3, width)
    assert torch.equal(model(images), model.head(model.features(images)))
    assert torch.equal(model(images), again(images))


def test_a_wrong_name_of_timm_and_timm_missing_get_one_sentence(asked, monkeypatch):
    with pytest.raises(KeyError, match=r"timm has no 'plane'\. Did you mean 'plain'\?"):
        make("timm:plane", 4, **IMAGES)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModuleNotFoundError, match=r"^timm:plain needs the package timm; install calibrant\[timm\]\.$"):
        make("timm:plain", 4, **IMAGES)
