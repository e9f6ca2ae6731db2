#include "device/cuda/kernels.h"

#include "device/cuda/kernel_cache.h"
#include "device/cuda/kernel_texts.h"
#include "trireme/core/error.h"

namespace trireme::device::cuda {
namespace {

std::vector<SourceText> all_kernel_texts() {
  return {kernel_texts().begin(), kernel_texts().end()};
}

}  // namespace

KernelSource stream_kernels(const std::string& file, int architecture) {
  return {.main = detail::concat("#include \"device/cuda/kernels/{}.cuh\"\n", {file}),
          .texts = all_kernel_texts(),
          .architecture = architecture};
}

KernelSource rule_kernels(const UpdateRule& rule, int architecture) {
  KernelSource source{.main = "#include \"device/cuda/kernels/lanes.cuh\"\n",
                      .texts = all_kernel_texts(),
                      .architecture = architecture};
  for (const SourceText& text : rule.texts) {
    source.main += detail::concat("#include \"{}\"\n", {text.name});
    source.texts.push_back(text);
  }
  source.main += detail::concat(
      "#define TRIREME_RULE {}\n"
      "#define TRIREME_STATES {}\n"
      "#include \"device/cuda/kernels/update.cuh\"\n",
      {rule.name, rule.states});
  return source;
}

KernelSource other_kernels(const KernelText& text, int architecture) {
  KernelSource source{.main = text.main, .texts = all_kernel_texts(), .architecture = architecture};
  source.texts.insert(source.texts.end(), text.texts.begin(), text.texts.end());
  return source;
}

KernelSource block_kernel(const BlockKernel& kernel, int architecture) {
  KernelSource source{.main =
                          "#include \"device/cuda/kernels/blocks.cuh\"\n"
                          "namespace trireme::device::cuda {\n",
                      .texts = all_kernel_texts(),
                      .architecture = architecture};
  for (const SourceText& text : kernel.texts) {
    source.main += detail::concat("#include \"{}\"\n", {text.name});
    source.texts.push_back(text);
  }
  source.main += detail::concat("}\nTRIREME_BLOCK_KERNEL({})\n", {kernel.name});
  return source;
}

Function Kernels::find(const std::string& file, const std::string& name) {
  return find_in(file, name, [&] { return stream_kernels(file, architecture_); });
}

Function Kernels::find(const UpdateRule& rule, const std::string& name) {
  TRIREME_CHECK(
      !rule.texts.empty(),
      "the update rule {} has no formula that a GPU could compile: use another optimizer, "
      "or the host (cpu)",
      {rule.name});
  return find_in(detail::concat("{} of {}", {rule.name, rule.states}), name, [&] {
    return rule_kernels(rule, architecture_);
  });
}

Function Kernels::find(const KernelText& text, const std::string& name) {
  return find_in(text.main, name, [&] { return other_kernels(text, architecture_); });
}

Function Kernels::find(const BlockKernel& kernel) {
  return find_in(detail::concat("blocks of ", kernel.name), "run_blocks", [&] {
    return block_kernel(kernel, architecture_);
  });
}

template <class Source>
Function Kernels::find_in(const std::string& module,
                          const std::string& name,
                          const Source& make_source) {
  const std::lock_guard lock(mutex_);
  Function& function = functions_[module + " " + name];
  if (function != nullptr) {
    return function;
  }
  const auto [entry, is_new] = modules_.try_emplace(module, nullptr);
  if (entry->second == nullptr) {
    const KernelSource source = make_source();
    const KernelCompiler& compiler = KernelCompiler::instance();
    const std::string code = KernelCache::of_this_user().get(
        ingredients_of(source, compiler.version()), [&] { return compiler.compile(source); });
    check(cuda_calls().module_load(&entry->second, code.data()), "loading kernels");
  }
  check(cuda_calls().module_function(&function, entry->second, name.c_str()), "finding a kernel");
  return function;
}

}  // namespace trireme::device::cuda
