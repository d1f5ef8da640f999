/* What both stub driver libraries share: every answer comes from the environment, else from a compile-time define
 * (-DSTUB_DRIVER_VERSION='"535.54.03"'), else from a healthy machine with one GPU.
 *
 *   STUB_DRIVER_VERSION  580.95.05   what NVML calls the driver version
 *   STUB_CUDA_VERSION    13000       newest CUDA the driver serves: 1000 * major + 10 * minor
 *   STUB_GPU_COUNT       1
 *   STUB_GPU_NAME        NVIDIA H200
 *   STUB_CUINIT          0           result of cuInit: 34 stub, 100 no device, 803 library mix, 999 unknown ...
 *   STUB_NVML_INIT       0           result of nvmlInit: 4 no permission, 9 not loaded, 18 version mismatch ...
 *   STUB_FAIL                        NVML calls that answer an error, of all GPUs or of one: name=code[@index],...
 *                                    nvmlDeviceGetHandleByIndex=15@1,nvmlDeviceGetMigMode=3
 *   STUB_MEMORY_USED     1024        MiB of the GPU's memory that are in use
 *   STUB_COMPUTE_MODE    0           2 prohibited, 3 exclusive process
 *   STUB_MIG             0           1: on, with two instances
 *   STUB_PERSISTENCE     1
 *   STUB_CLOCK_REASONS   1           bits of the clocks event reasons: 1 idle, 8 slowed by the hardware ...
 *   STUB_PCIE_WIDTH      16          of 16 lanes
 *   STUB_REMAP_PENDING   0           rows that wait to be remapped, or pages to be retired
 *   STUB_REMAP_FAILED    0
 *   STUB_RECOVERY        0           recovery action: 1 reset the GPU, 2 reboot ...
 *   STUB_FABRIC          0           state: 0 not supported, 1 not started, 2 in progress, 3 completed
 *   STUB_VIRTUAL         0           virtualisation mode: 2 vGPU
 *   STUB_HANG, STUB_CRASH            name of the call that never returns, or that ends the process by SIGSEGV:
 *                                    cuInit, cuDeviceGetCount, nvmlInit or nvmlDeviceGetCount
 *
 * Build: cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.so.1 libcuda.c   (libnvidia-ml.so.1 likewise)
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef STUB_DRIVER_VERSION
#define STUB_DRIVER_VERSION "580.95.05"
#endif
#ifndef STUB_CUDA_VERSION
#define STUB_CUDA_VERSION 13000
#endif
#ifndef STUB_GPU_COUNT
#define STUB_GPU_COUNT 1
#endif
#ifndef STUB_GPU_NAME
#define STUB_GPU_NAME "NVIDIA H200"
#endif
#ifndef STUB_CUINIT
#define STUB_CUINIT 0
#endif
#ifndef STUB_NVML_INIT
#define STUB_NVML_INIT 0
#endif

static inline int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

static inline const char *word(const char *name, const char *otherwise) {
    const char *text = getenv(name);
    return text && *text ? text : otherwise;
}

static inline void misbehave(const char *call) {
    if (!strcmp(word("STUB_HANG", ""), call))
        for (;;) pause();
    if (!strcmp(word("STUB_CRASH", ""), call)) raise(SIGSEGV);
}
