"""The whole way on real numbers: logits that come with the package, and five small networks trained on the spot."""
