"""Claim: tensors on a GPU give the same facts and metrics as on the CPU, in every floating type.

Run with `PYTHONPATH=src python benchmarks/gpu/metrics.py` on a machine with a GPU; it fails at the first difference.
"""

import platform
import time

import torch

import calibrant as cb
from calibrant.predictions.facts import from_logits
from calibrant.registry import METRICS

SPECIAL = {"ood_auroc", "binary_ece", "ece_kde"}  # other inputs, or quadratic in n


def model(n, k, dtype, generator):
    logits = (3 * torch.randn(n, k, generator=generator)).to(dtype)
    labels = torch.multinomial((logits.float() / 2).softmax(1), 1, generator=generator).squeeze(1)
    return logits, labels


def same_facts(k, dtype, generator):
    logits, labels = model(5000, k, dtype, generator)
    cpu = cb.Predictions(logits=logits, labels=labels)
    gpu = cb.Predictions(logits=logits.cuda(), labels=labels.cuda())
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    for view in ("confidence", "nll", "brier", "entropy"):
        torch.testing.assert_close(getattr(gpu, view), getattr(cpu, view), atol=tolerance, rtol=1e-5)
    assert torch.equal(cpu.predicted, gpu.predicted)
    probs = cb.Predictions(probs=logits.double().softmax(1).cuda(), labels=labels)
    torch.testing.assert_close(probs.confidence, cpu.confidence, atol=1e-5, rtol=0)
    return cpu, gpu


def same_metrics(cpu, gpu):
    for name in set(METRICS) - SPECIAL:
        one, two = (METRICS[name](*(getattr(p, v) for v in METRICS.entry(name).views)) for p in (cpu, gpu))
        assert abs(one - two) <= 1e-4 * max(1, abs(one)), (name, one, two)


def main():
    generator = torch.Generator().manual_seed(0)
    print(f"torch {torch.__version__}, python {platform.python_version()}, {torch.cuda.get_device_name()}")
    for k in (2, 10, 100, 1003):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            cpu, gpu = same_facts(k, dtype, generator)
        same_metrics(cpu, gpu)
    print(f"facts and {len(METRICS) - len(SPECIAL)} metrics agree; {cb.audit(gpu, resamples=30).verdict}")
    logits = torch.randn(200_000, 1000, device="cuda")
    labels = torch.zeros(200_000, dtype=torch.int64)
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        from_logits(logits, labels)
        print(f"one pass over 200 000 x 1 000 float32: {1000 * (time.perf_counter() - start):.1f} ms")


if __name__ == "__main__":
    main()
