"""The code interpretation: PTX text, its assembly, its launch and its measurement."""

if __name__ != "tinygpu.codegen":
    raise ImportError("this folder is the package tinygpu.codegen; import tinygpu.codegen")
