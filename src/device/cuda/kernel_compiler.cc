#include "device/cuda/kernel_compiler.h"

#include <algorithm>

#include <dlfcn.h>

#include "trireme/core/error.h"

namespace trireme::device::cuda {
namespace {

using Program = struct ProgramTag*;

// What LibTorch's own compiler is called, newest first; the folder is that of the LibTorch which
// this was built with (cmake/TriremeCuda.cmake), for programs that have not loaded it.
std::vector<std::string> compiler_names() {
  const std::string folder = TRIREME_NVRTC_FOLDER;
  std::vector<std::string> names;
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"}) {
    names.emplace_back(name);
    if (!folder.empty()) {
      names.push_back(detail::concat(folder, "/", name));
    }
    names.push_back(detail::concat("/usr/local/cuda/lib64/", name));
  }
  return names;
}

}  // namespace

struct KernelCompiler::Calls {
  int (*version)(int* major, int* minor);
  const char* (*error_text)(int result);
  int (*count_architectures)(int* count);
  int (*architectures)(int* values);
  int (*create)(Program* program,
                const char* source,
                const char* name,
                int header_count,
                const char* const* headers,
                const char* const* header_names);
  int (*destroy)(Program* program);
  int (*compile)(Program program, int option_count, const char* const* options);
  int (*log_bytes)(Program program, std::size_t* bytes);
  int (*log)(Program program, char* text);
  int (*code_bytes)(Program program, std::size_t* bytes);
  int (*code)(Program program, char* image);
};

KernelCompiler::KernelCompiler() {
  const std::vector<std::string> names = compiler_names();
  void* library = nullptr;
  for (std::size_t i = 0; i < names.size() && library == nullptr; ++i) {
    library = dlopen(names[i].c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  TRIREME_CHECK(library != nullptr,
                "kernels for a GPU have to be compiled, but NVRTC was not found (looked for {}): "
                "install a LibTorch with CUDA (pip install torch has it), or name its folder in "
                "LD_LIBRARY_PATH",
                {detail::listed(names)});
  static Calls calls;  // one compiler, never unloaded
  const auto load = [&](auto& member, const char* symbol) {
    member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(dlsym(library, symbol));
    TRIREME_CHECK(member != nullptr, "NVRTC on this machine has no ", symbol, ": it is too old");
  };
  load(calls.version, "nvrtcVersion");
  load(calls.error_text, "nvrtcGetErrorString");
  load(calls.count_architectures, "nvrtcGetNumSupportedArchs");
  load(calls.architectures, "nvrtcGetSupportedArchs");
  load(calls.create, "nvrtcCreateProgram");
  load(calls.destroy, "nvrtcDestroyProgram");
  load(calls.compile, "nvrtcCompileProgram");
  load(calls.log_bytes, "nvrtcGetProgramLogSize");
  load(calls.log, "nvrtcGetProgramLog");
  load(calls.code_bytes, "nvrtcGetCUBINSize");
  load(calls.code, "nvrtcGetCUBIN");
  calls_ = &calls;
  int major = 0;
  int minor = 0;
  TRIREME_ASSERT(calls.version(&major, &minor) == 0, "NVRTC does not tell its version");
  version_ = detail::concat("{}.{}", {major, minor});
}

const KernelCompiler& KernelCompiler::instance() {
  static const auto* compiler = new KernelCompiler;
  return *compiler;
}

std::span<const char* const> kernel_options() {
  // Every operation rounded on its own, exact quotients and roots, subnormal numbers kept.
  static constexpr const char* kOptions[] = {"--std=c++20",
                                             "--fmad=false",
                                             "--ftz=false",
                                             "--prec-div=true",
                                             "--prec-sqrt=true",
                                             "--device-as-default-execution-space"};
  return kOptions;
}

std::string KernelCompiler::compile(const KernelSource& source) const {
  int count = 0;
  TRIREME_ASSERT(calls_->count_architectures(&count) == 0, "NVRTC does not tell what it knows");
  std::vector<int> known(static_cast<std::size_t>(count));
  TRIREME_ASSERT(calls_->architectures(known.data()) == 0, "NVRTC does not tell what it knows");
  TRIREME_CHECK(std::ranges::find(known, source.architecture) != known.end(),
                "the GPU is of type sm_{}, which NVRTC {} cannot compile for: install a LibTorch "
                "built with a CUDA that knows this GPU",
                {source.architecture, version_});

  std::vector<const char*> names;
  std::vector<const char*> texts;
  for (const SourceText& text : source.texts) {
    names.push_back(text.name);
    texts.push_back(text.text);
  }
  Program program = nullptr;
  const int created = calls_->create(&program,
                                     source.main.c_str(),
                                     "trireme.cu",
                                     static_cast<int>(texts.size()),
                                     texts.data(),
                                     names.data());
  TRIREME_ASSERT(created == 0, "NVRTC takes no source: ", calls_->error_text(created));
  const std::string architecture = detail::concat("--gpu-architecture=sm_", source.architecture);
  std::vector<const char*> options(kernel_options().begin(), kernel_options().end());
  options.push_back(architecture.c_str());
  const int compiled = calls_->compile(program, static_cast<int>(options.size()), options.data());
  std::string result;
  std::size_t bytes = 0;
  if (compiled != 0) {
    calls_->log_bytes(program, &bytes);
    std::string words(bytes, '\0');
    calls_->log(program, words.data());
    calls_->destroy(&program);
    TRIREME_ASSERT(false, "NVRTC {} refuses a kernel: {}", {version_, words});
  }
  calls_->code_bytes(program, &bytes);
  result.resize(bytes);
  const int taken = calls_->code(program, result.data());
  calls_->destroy(&program);
  TRIREME_ASSERT(taken == 0 && bytes > 0, "NVRTC has no machine code: ", calls_->error_text(taken));
  return result;
}

}  // namespace trireme::device::cuda
