// The plain C interface that the modules of kernels/host call through ctypes.
#pragma once

#define LI_API extern "C" __attribute__((visibility("default")))
