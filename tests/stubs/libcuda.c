/* A stand-in for NVIDIA's libcuda.so.1, for machines without a GPU: enough of the driver API for a self-check, never
 * enough to compute (the CUDA runtime asks for hundreds of entries that are not here). See stub.h for what it answers. */
#include "stub.h"

int cuDriverGetVersion(int *version) {
    *version = number("STUB_CUDA_VERSION", STUB_CUDA_VERSION);
    return 0;
}

int cuInit(unsigned int flags) {
    (void)flags;
    misbehave("cuInit");
    /* the true driver hides every GPU when this variable is empty or begins with a negative number */
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible && (!*visible || *visible == '-')) return 100;
    return number("STUB_CUINIT", STUB_CUINIT);
}

int cuDeviceGetCount(int *count) {
    misbehave("cuDeviceGetCount");
    *count = number("STUB_GPU_COUNT", STUB_GPU_COUNT);
    return 0;
}

int cuGetErrorName(int error, const char **text) {
    switch (error) {
    case 0: *text = "CUDA_SUCCESS"; return 0;
    case 3: *text = "CUDA_ERROR_NOT_INITIALIZED"; return 0;
    case 34: *text = "CUDA_ERROR_STUB_LIBRARY"; return 0;
    case 100: *text = "CUDA_ERROR_NO_DEVICE"; return 0;
    case 304: *text = "CUDA_ERROR_OPERATING_SYSTEM"; return 0;
    case 802: *text = "CUDA_ERROR_SYSTEM_NOT_READY"; return 0;
    case 803: *text = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; return 0;
    case 804: *text = "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"; return 0;
    case 805: *text = "CUDA_ERROR_MPS_CONNECTION_FAILED"; return 0;
    case 999: *text = "CUDA_ERROR_UNKNOWN"; return 0;
    default: *text = NULL; return 1;
    }
}
