"""TinyGPU: a formal model of tiny GPUs and a search over their schedules."""
