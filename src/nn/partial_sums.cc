#include "nn/partial_sums.h"

#include <algorithm>

#include <ATen/ops/empty.h>

namespace trireme::nn {

using at::Tensor;

namespace {

constexpr int kLanes = 32;  // kernels/columns.cuh
constexpr int kRowsOfBlock = 8;

}  // namespace

Tensor partial_sums(const Tensor& where,
                    std::int64_t sums,
                    std::int64_t blocks,
                    std::int64_t columns) {
  return at::empty({sums, blocks, columns}, where.options().dtype(at::kFloat));
}

std::vector<Tensor> added(const Tensor& partial, std::int64_t count, const Tensor& like) {
  kernels::PartialArguments arguments{.blocks = partial.size(1),
                                      .width = partial.size(2),
                                      .partial = address_of(partial),
                                      .outputs = {}};
  std::vector<Tensor> sums;
  for (std::int64_t i = 0; i < count; ++i) {
    sums.push_back(at::empty({partial.size(2)}, like.options()));
    arguments.outputs[i] = address_of(sums.back());
  }
  launch(partial,
         "columns",
         "add_partial",
         kind_of(like.scalar_type(), kLanes, {}),  // as the kernels before it: one text
         {.blocks_x = divided_up(partial.size(2), kLanes), .blocks_y = count},
         arguments);
  return sums;
}

Grid grid_of_columns(std::int64_t rows, std::int64_t columns, int pack, std::int64_t blocks) {
  const std::int64_t across = divided_up(columns, std::int64_t{kLanes} * pack);
  const std::int64_t down =
      std::min(divided_up(rows, kRowsOfBlock), std::max<std::int64_t>(1, blocks / across));
  return {.blocks_x = across, .blocks_y = down};
}

}  // namespace trireme::nn
