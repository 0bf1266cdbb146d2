"""The errors that the emulator raises; ``tinygpu-ptx`` has the file of ``tinygpu.errors`` here."""

from tinygpu.errors import EmulatorError, LaunchError, ProgramError, TinyGpuError

__all__ = ["EmulatorError", "LaunchError", "ProgramError", "TinyGpuError"]
