/* A stand-in for NVIDIA's libnvidia-ml.so.1, for machines without a GPU: the entries that nvidia-ml-py calls for the
 * self-check and for the figures beside the training curves. See stub.h for what it answers. */
#include <stdio.h>

#include "stub.h"

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned int gpu, memory; } utilization;
typedef void *device;

enum { OK = 0, INVALID_ARGUMENT = 2 };
static const unsigned long long GIB = 1024ull * 1024 * 1024;

static int count(void) { return number("STUB_GPU_COUNT", STUB_GPU_COUNT); }

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    misbehave("nvmlInit");
    return number("STUB_NVML_INIT", STUB_NVML_INIT);
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an NVML error, says the stub"; }

int nvmlSystemGetDriverVersion(char *text, unsigned int size) {
    snprintf(text, size, "%s", word("STUB_DRIVER_VERSION", STUB_DRIVER_VERSION));
    return OK;
}
int nvmlSystemGetNVMLVersion(char *text, unsigned int size) {
    snprintf(text, size, "13.%s", word("STUB_DRIVER_VERSION", STUB_DRIVER_VERSION));
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = number("STUB_CUDA_VERSION", STUB_CUDA_VERSION);
    return OK;
}
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

int nvmlDeviceGetCount_v2(unsigned int *out) {
    misbehave("nvmlDeviceGetCount");
    *out = (unsigned int)count();
    return OK;
}
/* a handle is the index plus one, so that it is never NULL */
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device *out) {
    if ((int)index >= count()) return INVALID_ARGUMENT;
    *out = (device)(unsigned long)(index + 1);
    return OK;
}
int nvmlDeviceGetName(device gpu, char *text, unsigned int size) {
    (void)gpu;
    snprintf(text, size, "%s", word("STUB_GPU_NAME", STUB_GPU_NAME));
    return OK;
}
int nvmlDeviceGetUUID(device gpu, char *text, unsigned int size) {
    snprintf(text, size, "GPU-00000000-0000-0000-0000-%012lu", (unsigned long)gpu - 1);
    return OK;
}
int nvmlDeviceGetMemoryInfo(device gpu, memory_v1 *out) {
    (void)gpu;
    *out = (memory_v1){141 * GIB, 140 * GIB, 1 * GIB};
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(device gpu, memory_v2 *out) {
    (void)gpu;
    *out = (memory_v2){out->version, 141 * GIB, 0, 140 * GIB, 1 * GIB};
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(device gpu, int *major, int *minor) {
    (void)gpu;
    *major = 9;
    *minor = 0;
    return OK;
}
int nvmlDeviceGetMinorNumber(device gpu, unsigned int *minor) {
    *minor = (unsigned int)((unsigned long)gpu - 1);
    return OK;
}
int nvmlDeviceGetUtilizationRates(device gpu, utilization *out) {
    (void)gpu;
    *out = (utilization){42, 7};
    return OK;
}
int nvmlDeviceGetTemperature(device gpu, int sensor, unsigned int *celsius) {
    (void)gpu, (void)sensor;
    *celsius = 40;
    return OK;
}
int nvmlDeviceGetPowerUsage(device gpu, unsigned int *milliwatts) {
    (void)gpu;
    *milliwatts = 123000;
    return OK;
}
