"""Runtime: what starts a kernel that is already built.

A *contract* says what a kernel takes, in plain data; a *function* is a contract and a cubin.  These
modules know no term, no schedule and no PTX, need NumPy and CuPy alone, and import nothing of
tinyGPU but its errors: joined into one file they are the loader of a bundle (``codegen/bundle``).

    views.py      arrays as a kernel sees them
    contract.py   which arrays a kernel takes, and the integers that they imply
    maps.py       tensor maps, encoded
    driver.py     the calls of libcuda
    operator.py   an operator of PyTorch
    function.py   calls, prepared launches, and what is kept of them
    bundle.py     a folder of functions, and which of them serves a shape
"""
