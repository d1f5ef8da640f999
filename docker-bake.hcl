# The variants of the image. `make image` builds the current one, `make images` or `docker buildx bake` all three.
# RELEASE=1 builds for every platform that has wheels, with attestations; that needs a builder that can do both (docker
# buildx create --use) and a registry to push to. .github/workflows/release.yml does so.
variable "BASE_IMAGE" { # another base for whatever is built, of a mirror for instance
  default = ""
}
variable "RELEASE" {
  default = ""
}
variable "REGISTRY" { # what a release's names begin with, with the slash: ghcr.io/OWNER/
  default = ""
}
variable "VERSION" { # of a release: each variant then has a second name, which never moves: torch2.13-0.1.0
  default = ""
}

function "named" {
  params = [tag]
  result = "${REGISTRY}pytorch-cuda-rl:${tag}"
}
function "exact" { # the name that says most
  params = [variant]
  result = named(VERSION != "" ? "${variant}-${VERSION}" : variant)
}

# What a release tells of itself: the packages in it (SBOM), and how and of what it was built (provenance).
target "release" {
  attest = RELEASE != "" ? ["type=sbom", "type=provenance,mode=max"] : []
}

group "default" {
  targets = ["torch2_13", "torch2_7", "torch2_6"]
}

target "torch2_13" {
  inherits = ["release"]
  args = {
    BASE_IMAGE = BASE_IMAGE != "" ? BASE_IMAGE : "cuda-13"
    TORCH      = "2.13"
    RL_IMAGE   = exact("torch2.13")
  }
  tags      = distinct([named("torch2.13"), exact("torch2.13"), named("latest")])
  platforms = RELEASE != "" ? ["linux/amd64", "linux/arm64"] : []
}
# The wheels of torch 2.7 and 2.6 bring CUDA for x86-64 only.
target "torch2_7" {
  inherits = ["release"]
  args = {
    BASE_IMAGE = BASE_IMAGE != "" ? BASE_IMAGE : "cuda-12"
    TORCH      = "2.7"
    RL_IMAGE   = exact("torch2.7")
  }
  tags      = distinct([named("torch2.7"), exact("torch2.7")])
  platforms = RELEASE != "" ? ["linux/amd64"] : []
}
target "torch2_6" {
  inherits = ["release"]
  args = {
    BASE_IMAGE = BASE_IMAGE != "" ? BASE_IMAGE : "cuda-12"
    TORCH      = "2.6"
    RL_IMAGE   = exact("torch2.6")
  }
  tags      = distinct([named("torch2.6"), exact("torch2.6")])
  platforms = RELEASE != "" ? ["linux/amd64"] : []
}
