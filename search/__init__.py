"""Search over schedules: the cost of one, strategies over many, a store of measurements."""

if __name__ != "tinygpu.search":
    raise ImportError("this folder is the package tinygpu.search; import tinygpu.search")
