"""Side-by-side measurements with peers: `python -m benchmarks.NAME` writes NAME.json."""
