// The plain C interface that quantizer.py calls through ctypes.
#pragma once

#define LI_API extern "C" __attribute__((visibility("default")))
