/* A stand-in for NVIDIA's libnvidia-ml.so.1, for machines without a GPU: the entries that nvidia-ml-py calls for the
 * self-check and for the figures beside the training curves. See stub.h for what it answers. */
#include "stub.h"

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned int gpu, memory; } utilization;
typedef struct {
    char legacy[16];
    unsigned int domain, bus, device, pci_device, subsystem;
    char bus_id[32];
} pci_info;
typedef struct {
    unsigned int field, scope;
    long long timestamp, latency;
    unsigned int type;
    int result;
    union { double real; unsigned int number; unsigned long long large; } value;
} field_value;
typedef struct {
    unsigned int version;
    unsigned char cluster[16];
    int status;
    unsigned int clique, state, health;
} fabric_info;
typedef void *device;

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
enum { RECOVERY_ACTION = 230 }; /* NVML_FI_DEV_GET_GPU_RECOVERY_ACTION */
static const unsigned long long MIB = 1024ull * 1024;
static const unsigned int MIG_INSTANCE = 1000; /* handles beyond this are MIG instances */

static int count(void) { return number("STUB_GPU_COUNT", STUB_GPU_COUNT); }

/* a handle is the index plus one, so that it is never NULL */
static int index_of(device gpu) { return (int)(unsigned long)gpu - 1; }

/* what STUB_FAIL wants of this call */
static int failure(const char *call, int index) {
    char list[1024], *rest = list;
    snprintf(list, sizeof list, "%s", word("STUB_FAIL", ""));
    for (char *one; (one = strsep(&rest, ","));) {
        char *code = strchr(one, '=');
        if (!code) continue;
        *code++ = 0;
        char *at = strchr(code, '@');
        if (!strcmp(one, call) && (!at || atoi(at + 1) == index)) return atoi(code);
    }
    return OK;
}
#define ANSWER(call, gpu) \
    do { \
        misbehave(call); \
        int code = failure(call, index_of(gpu)); \
        if (code) return code; \
    } while (0)

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
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device *out) {
    device gpu = (device)(unsigned long)(index + 1);
    ANSWER("nvmlDeviceGetHandleByIndex", gpu);
    if ((int)index >= count()) return INVALID_ARGUMENT;
    *out = gpu;
    return OK;
}
int nvmlDeviceGetName(device gpu, char *text, unsigned int size) {
    ANSWER("nvmlDeviceGetName", gpu);
    snprintf(text, size, "%s", word("STUB_GPU_NAME", STUB_GPU_NAME));
    return OK;
}
int nvmlDeviceGetUUID(device gpu, char *text, unsigned int size) {
    ANSWER("nvmlDeviceGetUUID", gpu);
    unsigned int index = (unsigned int)index_of(gpu);
    const char *kind = index >= MIG_INSTANCE ? "MIG" : "GPU";
    snprintf(text, size, "%s-00000000-0000-0000-0000-%012u", kind, index % MIG_INSTANCE);
    return OK;
}
int nvmlDeviceGetPciInfo_v3(device gpu, pci_info *out) {
    ANSWER("nvmlDeviceGetPciInfo", gpu);
    *out = (pci_info){.bus = (unsigned int)index_of(gpu) + 1};
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return OK;
}
int nvmlDeviceGetMemoryInfo(device gpu, memory_v1 *out) {
    ANSWER("nvmlDeviceGetMemoryInfo", gpu);
    unsigned long long total = 141 * 1024 * MIB, used = (unsigned long long)number("STUB_MEMORY_USED", 1024) * MIB;
    *out = (memory_v1){total, total - used, used};
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(device gpu, memory_v2 *out) {
    memory_v1 plain;
    int code = nvmlDeviceGetMemoryInfo(gpu, &plain);
    *out = (memory_v2){out->version, plain.total, 0, plain.free, plain.used};
    return code;
}
int nvmlDeviceGetCudaComputeCapability(device gpu, int *major, int *minor) {
    ANSWER("nvmlDeviceGetCudaComputeCapability", gpu);
    *major = 9;
    *minor = 0;
    return OK;
}
int nvmlDeviceGetMinorNumber(device gpu, unsigned int *minor) {
    ANSWER("nvmlDeviceGetMinorNumber", gpu);
    *minor = (unsigned int)index_of(gpu);
    return OK;
}
int nvmlDeviceGetUtilizationRates(device gpu, utilization *out) {
    ANSWER("nvmlDeviceGetUtilizationRates", gpu);
    *out = (utilization){42, 7};
    return OK;
}
int nvmlDeviceGetTemperature(device gpu, int sensor, unsigned int *celsius) {
    (void)sensor;
    ANSWER("nvmlDeviceGetTemperature", gpu);
    *celsius = 40;
    return OK;
}
int nvmlDeviceGetPowerUsage(device gpu, unsigned int *milliwatts) {
    ANSWER("nvmlDeviceGetPowerUsage", gpu);
    *milliwatts = 123000;
    return OK;
}
int nvmlDeviceGetComputeMode(device gpu, unsigned int *mode) {
    ANSWER("nvmlDeviceGetComputeMode", gpu);
    *mode = (unsigned int)number("STUB_COMPUTE_MODE", 0);
    return OK;
}
int nvmlDeviceGetPersistenceMode(device gpu, unsigned int *mode) {
    ANSWER("nvmlDeviceGetPersistenceMode", gpu);
    *mode = (unsigned int)number("STUB_PERSISTENCE", 1);
    return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *reasons) {
    ANSWER("nvmlDeviceGetCurrentClocksEventReasons", gpu);
    *reasons = (unsigned long long)number("STUB_CLOCK_REASONS", 1);
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, unsigned long long *reasons) {
    ANSWER("nvmlDeviceGetCurrentClocksThrottleReasons", gpu);
    *reasons = (unsigned long long)number("STUB_CLOCK_REASONS", 1);
    return OK;
}
int nvmlDeviceGetCurrPcieLinkWidth(device gpu, unsigned int *lanes) {
    ANSWER("nvmlDeviceGetCurrPcieLinkWidth", gpu);
    *lanes = (unsigned int)number("STUB_PCIE_WIDTH", 16);
    return OK;
}
int nvmlDeviceGetMaxPcieLinkWidth(device gpu, unsigned int *lanes) {
    ANSWER("nvmlDeviceGetMaxPcieLinkWidth", gpu);
    *lanes = 16;
    return OK;
}
int nvmlDeviceGetRemappedRows(device gpu, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending,
                              unsigned int *failed) {
    ANSWER("nvmlDeviceGetRemappedRows", gpu);
    *corrected = 2;
    *uncorrected = 1;
    *pending = (unsigned int)number("STUB_REMAP_PENDING", 0);
    *failed = (unsigned int)number("STUB_REMAP_FAILED", 0);
    return OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(device gpu, unsigned int *pending) {
    ANSWER("nvmlDeviceGetRetiredPagesPendingStatus", gpu);
    *pending = (unsigned int)number("STUB_REMAP_PENDING", 0);
    return OK;
}
int nvmlDeviceGetFieldValues(device gpu, int count, field_value *values) {
    ANSWER("nvmlDeviceGetFieldValues", gpu);
    for (int i = 0; i < count; i++) {
        values[i].result = values[i].field == RECOVERY_ACTION ? OK : NOT_SUPPORTED;
        values[i].value.number = (unsigned int)number("STUB_RECOVERY", 0);
    }
    return OK;
}
int nvmlDeviceGetGpuFabricInfoV(device gpu, fabric_info *out) {
    ANSWER("nvmlDeviceGetGpuFabricInfoV", gpu);
    *out = (fabric_info){.version = out->version, .state = (unsigned int)number("STUB_FABRIC", 0)};
    return OK;
}
int nvmlDeviceGetVirtualizationMode(device gpu, unsigned long long *mode) {
    ANSWER("nvmlDeviceGetVirtualizationMode", gpu);
    *mode = (unsigned long long)number("STUB_VIRTUAL", 0);
    return OK;
}
int nvmlDeviceGetMigMode(device gpu, unsigned int *current, unsigned int *pending) {
    ANSWER("nvmlDeviceGetMigMode", gpu);
    *current = *pending = (unsigned int)number("STUB_MIG", 0);
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(device gpu, unsigned int *most) {
    ANSWER("nvmlDeviceGetMaxMigDeviceCount", gpu);
    *most = 7;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(device gpu, unsigned int index, device *out) {
    ANSWER("nvmlDeviceGetMigDeviceHandleByIndex", gpu);
    if (index >= 2) return NOT_FOUND;
    *out = (device)(unsigned long)(MIG_INSTANCE + index + 1);
    return OK;
}
