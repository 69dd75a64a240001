"""A model over a loader: rows in order, float32 on the CPU, and the model as it was."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.predictions.collect import collect

X = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(50) % 3


class Net(nn.Module):
    """Layers whose modes differ, and a last linear layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.9))
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return self.fc(self.body(x).relu())


class Returning(nn.Module):
    """A model that packs its logits in some way."""

    def __init__(self, pack):
        super().__init__()
        self.fc, self.pack = nn.Linear(6, 3), pack

    def forward(self, x=None, *, pixel_values=None):
        return self.pack(self.fc(x if pixel_values is None else pixel_values))


@pytest.fixture
def net():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return Net()


def batches(size=8):
    return DataLoader(TensorDataset(X, Y), batch_size=size)


def test_rows_come_in_order_as_the_model_in_eval_mode_gives_them(net):
    found = collect(net, batches())
    net.eval()
    torch.testing.assert_close(found.logits, net(X).detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(found.labels, Y)
    assert found.features is None
    assert len(found) == 50
    assert not found.logits.requires_grad
    assert not found.logits.is_inference()


def test_features_are_the_input_of_the_named_layer(net):
    found = collect(net, batches(), features="fc")
    torch.testing.assert_close(net.fc(found.features), found.logits)
    inside = collect(net, batches(), features="body.2")
    assert inside.features.shape == (50, 5)
    assert len(net.fc._forward_pre_hooks) == 0
    p = found.predictions()
    assert torch.equal(p.features, found.features)
    assert torch.equal(p.labels, Y)


def test_the_features_of_pooled_images_lose_their_empty_axes():
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 3, 1), nn.Flatten())
    found = collect(model, [(torch.randn(7, 4, 5, 5), Y[:7])], features="1")
    assert found.features.shape == (7, 4)


def test_the_model_is_left_as_it_was(net):
    net.train()
    net.body[1].eval()  # a frozen layer
    modes = [layer.training for layer in net.modules()]
    state, buffers = torch.get_rng_state(), {k: v.clone() for k, v in net.state_dict().items()}
    collect(net, DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True), features="fc")
    assert [layer.training for layer in net.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, buffers[name]) for name, value in net.state_dict().items())
    assert torch.is_grad_enabled()


def test_the_model_is_left_as_it_was_after_an_error_too(net):
    net.body[1].eval()
    modes = [layer.training for layer in net.modules()]

    def broken():
        yield X[:4], Y[:4]
        raise RuntimeError("the disk is gone")

    with torch.no_grad(), pytest.raises(RuntimeError, match="the disk is gone"):
        collect(net, broken(), features="fc")
    assert [layer.training for layer in net.modules()] == modes
    assert len(net.fc._forward_pre_hooks) == 0
    assert torch.is_grad_enabled()


PACKED = {
    "tensor": lambda z: z,
    "half": lambda z: z.half(),
    "double": lambda z: z.double(),
    "dict": lambda z: {"loss": None, "logits": z},
    "attribute": lambda z: SimpleNamespace(logits=z),
}


@pytest.mark.parametrize("name", PACKED)
def test_logits_are_found_in_what_models_return(name):
    model = Returning(PACKED[name])
    found = collect(model, batches())
    assert found.logits.dtype == torch.float32
    torch.testing.assert_close(found.logits, model.fc(X).detach(), rtol=1e-2 if name == "half" else 1e-5, atol=1e-2)


BATCHES = {
    "pair": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "labels": lambda x, y: {"pixel_values": x, "labels": y},
    "label": lambda x, y: {"pixel_values": x, "label": y},
    "named": lambda x, y: ({"pixel_values": x}, y),
    "positional": lambda x, y: ((x,), y),
    "numpy": lambda x, y: (x, y.numpy().astype(np.int32)),
    "plain": lambda x, y: (x, y.tolist()),
}


@pytest.mark.parametrize("name", BATCHES)
def test_every_kind_of_batch_is_read(name):
    model = Returning(PACKED["tensor"])
    found = collect(model, (BATCHES[name](X[i : i + 7], Y[i : i + 7]) for i in range(0, 50, 7)))
    torch.testing.assert_close(found.logits, model.fc(X).detach())
    assert torch.equal(found.labels.long(), Y)


def test_one_logit_a_row_stays_one():
    model = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    assert collect(model, [(X, Y % 2)]).logits.shape == (50,)
    assert collect(model, [(X, Y % 2)]).predictions().k == 2


def test_progress_is_told():
    told = []
    collect(Returning(PACKED["tensor"]), batches(20), on_step=told.append)
    assert told == ["20 rows", "40 rows", "50 rows"]


def test_inputs_go_where_the_model_is_or_where_they_are_sent():
    model = nn.Linear(6, 3, device="meta")
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):  # nothing comes back from the meta device
        collect(model, batches())
    seen = []
    model = Returning(lambda z: seen.append(z.device.type) or z)
    assert collect(model, batches(), device="cpu").logits.device.type == "cpu"
    assert set(seen) == {"cpu"}


WRONG = {
    "nothing": (lambda: (PACKED["tensor"], []), "loader must give at least one batch; it gave none."),
    "triple": (
        lambda: (PACKED["tensor"], [(X, Y, Y)]),
        "must give pairs (inputs, labels), or dicts; got a tuple of 3.",
    ),
    "tensor": (lambda: (PACKED["tensor"], [X]), "must give pairs (inputs, labels), or dicts; got a Tensor."),
    "unlabelled": (lambda: (PACKED["tensor"], [{"x": X, "y": Y}]), "a dict must have 'labels'; got 'x', 'y'."),
    "names": (lambda: (PACKED["tensor"], [(X[:2], ["cat", "dog"])]), "labels must be numbers; got <U3."),
    "short": (lambda: (PACKED["tensor"], [(X, Y[:9])]), "a row for each label; got logits (50, 3) and labels (9,)."),
    "scalar": (lambda: (PACKED["tensor"], [(X, Y[0])]), "a row for each label; got logits (50, 3) and labels ()."),
    "images": (lambda: (lambda z: z[..., None, None], [(X, Y)]), "(n, k) or (n,); got (50, 3, 1, 1)."),
    "tuple": (lambda: (lambda z: (z, z), [(X, Y)]), "or something with .logits; got tuple. Wrap it in a module"),
    "none": (lambda: (lambda z: None, [(X, Y)]), "or something with .logits; got NoneType."),
    "empty": (lambda: (lambda z: {"logits": None}, [(X, Y)]), "or something with .logits; got dict."),
    "squeezed": (
        lambda: (lambda z: z.squeeze(0), [(X[:3], Y[:3]), (X[:1], Y[:3])]),
        "batches must agree but for their number of rows; got rows of [(), (3,)].",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_one_sentence(name):
    make, words = WRONG[name]
    pack, loader = make()
    with pytest.raises((ValueError, TypeError)) as raised:
        collect(Returning(pack), loader)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


class Twice(nn.Module):
    """A layer used twice, one never, one with two tensors of tokens."""

    def __init__(self):
        super().__init__()
        self.twice, self.never, self.tokens = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 6)
        self.named = Returning(PACKED["tensor"])

    def forward(self, x):
        self.tokens(x[:, None].repeat(1, 4, 1))
        return self.named(pixel_values=self.twice(self.twice(x)))


LAYERS = {
    "head": "features must name a layer of the model; got 'head', and the last ones are twice, never, tokens, named",
    "twice": "features='twice' must be a layer that takes one tensor once; it was called 2 times.",
    "never": "features='never' must be a layer that takes one tensor once; it was called 0 times.",
    "tokens": "features='tokens' must take one row a sample, (50, d); got (50, 4, 6).",
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_has_no_features_is_refused(layer):
    with pytest.raises(ValueError, match="features") as raised:
        collect(Twice(), [(X, Y)], features=layer)
    assert LAYERS[layer] in str(raised.value)


def test_a_layer_called_by_name_has_features_too():
    assert collect(Twice(), [(X, Y)], features="named").features.shape == (50, 6)


def test_what_is_collected_does_not_change_when_buffers_are_used_again():
    inputs, labels = torch.empty(5, 6), torch.empty(5, dtype=torch.long)

    def loader():
        for i in range(3):
            inputs.fill_(float(i))
            labels.fill_(i)
            yield inputs, labels

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(6, 3)

        def forward(self, x):
            out = self.head(x)
            x.mul_(-1)
            return out

    found = collect(Model(), loader(), features="head")
    assert found.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert found.features[:, 0].tolist() == [0.0] * 5 + [1.0] * 5 + [2.0] * 5
