# The variants of the image. `make image` builds the current one, `make images` all three. RELEASE=1 builds for every
# platform that has wheels, which needs a builder that can (docker buildx create --use) and a registry to push to.
variable "BASE_IMAGE" { # another base for whatever is built, of a mirror for instance
  default = ""
}
variable "RELEASE" {
  default = ""
}
variable "CUDA_13_0" {
  default = "nvidia/cuda:13.0.2-base-ubuntu24.04@sha256:2ab6381d970b211fb93853796dc6707eb8a72575a375c422b17cf4d8b2641701"
}
# CUDA 12.4's base ends at Ubuntu 22.04 and Python 3.10; the CUDA libraries are the wheels' anyway.
variable "CUDA_12_6" {
  default = "nvidia/cuda:12.6.3-base-ubuntu24.04@sha256:c87e78933f4c16e3272123bf2f75537306596d0fbaa395a29696a22786e5ee0e"
}

group "default" {
  targets = ["torch2_13"]
}
group "all" {
  targets = ["torch2_13", "torch2_7", "torch2_6"]
}

target "torch2_13" {
  args = {
    BASE_IMAGE = BASE_IMAGE != "" ? BASE_IMAGE : CUDA_13_0
    TORCH      = "2.13"
    RL_IMAGE   = "pytorch-cuda-rl:torch2.13"
  }
  tags      = ["pytorch-cuda-rl:torch2.13", "pytorch-cuda-rl:latest"]
  platforms = RELEASE != "" ? ["linux/amd64", "linux/arm64"] : []
}
# The wheels of torch 2.7 and 2.6 bring CUDA for x86-64 only.
target "torch2_7" {
  args = {
    BASE_IMAGE = BASE_IMAGE != "" ? BASE_IMAGE : CUDA_12_6
    TORCH      = "2.7"
    RL_IMAGE   = "pytorch-cuda-rl:torch2.7"
  }
  tags      = ["pytorch-cuda-rl:torch2.7"]
  platforms = RELEASE != "" ? ["linux/amd64"] : []
}
target "torch2_6" {
  args = {
    BASE_IMAGE = BASE_IMAGE != "" ? BASE_IMAGE : CUDA_12_6
    TORCH      = "2.6"
    RL_IMAGE   = "pytorch-cuda-rl:torch2.6"
  }
  tags      = ["pytorch-cuda-rl:torch2.6"]
  platforms = RELEASE != "" ? ["linux/amd64"] : []
}
