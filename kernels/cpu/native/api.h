// The plain C interface that kernels/cpu/native.py calls through ctypes.
#pragma once

#define LI_API extern "C" __attribute__((visibility("default")))
