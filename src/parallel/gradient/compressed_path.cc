#include "parallel/gradient/compressed_path.h"

#include <algorithm>
#include <cstring>

#include "parallel/memory/runs.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr std::int64_t kBlocksAtATime = 64;

bool is_in(const std::vector<Range>& ranges, std::int64_t element) {
  return std::ranges::any_of(ranges,
                             [&](const Range& r) { return r.begin <= element && element < r.end; });
}

ConstSpan bytes_span(const std::shared_ptr<std::byte[]>& bytes, std::size_t count) {
  return {bytes.get(), static_cast<std::int64_t>(count), Dtype::kUint8, bytes};
}
Span bytes_span_to(const std::shared_ptr<std::byte[]>& bytes, std::size_t count) {
  return {bytes.get(), static_cast<std::int64_t>(count), Dtype::kUint8, bytes};
}

std::span<float> floats_in(const Span& run) {
  TRIREME_ASSERT(run.dtype() == Dtype::kFloat32, "sums are float32");
  return {reinterpret_cast<float*>(run.bytes()), static_cast<std::size_t>(run.numel())};
}

}  // namespace

const Compressor& checked_compressor(const PartContext& context) {
  const Compressor& compressor = *context.options.compress;
  TRIREME_CHECK(!context.plan.ownership.by_machine(),
                "compressor {}: every owner needs every rank's gradients, found owners in each "
                "machine: leave EngineOptions::shard_group at kWorld",
                {compressor.format().name});
  TRIREME_CHECK(context.ranks.sum_group() == 1,
                "compressor {}: compressed gradients are added up one by one, found sums of groups "
                "of {}: leave sum_group at 1",
                {compressor.format().name, context.ranks.sum_group()});
  for (const Unit& unit : context.plan.units) {
    TRIREME_CHECK(unit.sum_dtype() == Dtype::kFloat32 || !unit.trainable,
                  "compressor {}: parameter {} is {}, and compressors take float32 and 16 bits: "
                  "use float32, or leave compression out",
                  {compressor.format().name, unit.name, dtype_name(unit.dtype)});
  }
  return compressor;
}

std::vector<char> dense_parameters(const PartContext& context) {
  std::vector<char> dense;
  for (std::size_t p = 0; p < context.plan.parameters.size(); ++p) {
    dense.push_back(context.plan.parameters[p].trainable && !context.plan.unit_of(p).sparse ? 1
                                                                                            : 0);
  }
  return dense;
}

CompressedPath::CompressedPath(const PartContext& context, GradientSums& sums)
    : BucketPath(context, sums, /*launches=*/true),
      coder_(checked_compressor(context)),
      blocks_(context, sums, context.options.compress->format().block),
      residuals_(context, context.options.compress->format(), dense_parameters(context), &blocks_),
      owners_(context.plan.units.size()),
      used_(context.plan.parameters.size(), 0) {
  const std::int64_t block = coder_.compressor().format().block;
  const auto me = static_cast<std::size_t>(context.ranks.rank());
  const auto mail_to = [&](std::size_t u, Range range, Dtype dtype) {
    Mail mail{.runs = block_runs(context.plan.units[u].layout, range, block)};
    mail.bytes = mail.runs.size() + bytes_of(blocks_in(mail.runs));
    mail.exact_bytes = static_cast<std::size_t>(range.size()) * dtype_bytes(dtype);
    return mail;
  };
  for (std::size_t b = 0; b < bucket_count(); ++b) {
    const std::size_t u = bucket(b).unit;
    Route route;
    route.runs = block_runs(context.plan.units[u].layout, bucket(b).range, block);
    for (const Range& range : context.plan.ownership.ranges(u)) {
      route.to.push_back(
          mail_to(u, intersection(range, bucket(b).range), memory_.dtype(unit_of(b))));
    }
    route.has_sums.resize(route.to[me].runs.size());
    routes_.push_back(std::move(route));
  }
  for (std::size_t u = 0; u < owners_.size(); ++u) {
    const Unit& unit = context.plan.units[u];
    for (const Range& range : context.plan.ownership.ranges(u)) {
      if (unit.trainable && !unit.sparse) {
        owners_[u].push_back(mail_to(u, range, unit.sum_dtype()));
      }
    }
  }
}

std::size_t CompressedPath::bytes_of(std::int64_t blocks) const {
  return static_cast<std::size_t>(blocks) * coder_.compressor().format().bytes;
}

BlockKey CompressedPath::key_of(std::size_t unit, const BlockRun& run, bool sum) const {
  return {.step = context_.steps == nullptr ? 0 : *context_.steps,
          .parameter = context_.plan.units[unit].parameters[run.parameter],
          .block = run.first,
          .sum = sum};
}

std::span<float> CompressedPath::values_of(Range range) {
  const auto numel = static_cast<std::size_t>(range.size());
  values_.resize(std::max(values_.size(), numel));
  return {values_.data(), numel};
}

std::vector<char> CompressedPath::encode(const Ready& ready, std::vector<std::byte>& coded) {
  const std::size_t u = bucket(ready.bucket).unit;
  const std::int64_t begin = bucket(ready.bucket).range.begin;
  std::vector<char> present;
  std::byte* to = coded.data();
  for (const BlockRun& run : routes_[ready.bucket].runs) {
    const bool here = !is_in(ready.absent, run.range.begin - begin);
    present.push_back(here ? 1 : 0);
    const BlockCoder::Carried carried = residuals_.of_term(round_.number, u, run.range.begin);
    if (here) {
      const Span gradient = part_of(ready.memory, {run.range.begin - begin, run.range.end - begin});
      std::span<float> values;
      if (gradient.dtype() == Dtype::kFloat32) {
        values = floats_in(gradient);
      } else {
        values = values_of(run.range);
        device::host().copy(Span(values.data(), run.range.size(), Dtype::kFloat32), gradient);
      }
      coder_.encode(values, to, key_of(u, run, /*sum=*/false), carried);
    } else {
      carried.rest.wait(run.range.size());
      carried.velocity.wait(run.range.size());
    }
    to += bytes_of(run.count);
  }
  return present;
}

void CompressedPath::launch(const Ready& ready) {
  const Route& route = routes_[ready.bucket];
  std::vector<std::byte> coded(bytes_of(blocks_in(route.runs)));
  const std::vector<char> present = encode(ready, coded);
  give_back(ready);

  // Runs of an owner are those of the bucket, or parts of its first and last.
  Counts counts;
  std::size_t total = 0;
  for (const Mail& mail : route.to) {
    counts.push_back(static_cast<std::int64_t>(mail.bytes));
    total += mail.bytes;
  }
  const auto sent = std::make_shared<std::byte[]>(total);
  std::byte* to = sent.get();
  for (const Mail& mail : route.to) {
    std::byte* const there = to;
    to += mail.runs.size();
    std::size_t r = 0;
    std::size_t from = 0;
    for (std::size_t i = 0; i < mail.runs.size(); ++i) {
      const BlockRun& run = mail.runs[i];
      for (; route.runs[r].parameter != run.parameter; ++r) {
        from += bytes_of(route.runs[r].count);
      }
      there[i] = static_cast<std::byte>(present[r]);
      std::memcpy(
          to, coded.data() + from + bytes_of(run.first - route.runs[r].first), bytes_of(run.count));
      to += bytes_of(run.count);
    }
  }

  const Mail& mine = route.to[static_cast<std::size_t>(context_.ranks.rank())];
  if (context_.ranks.size() == 1) {
    take_in(ready.bucket, sent.get());
    return;
  }
  use_.sent_bytes += static_cast<std::int64_t>(total - mine.bytes);
  for (const Mail& mail : route.to) {
    use_.exact_bytes += &mail == &mine ? 0 : static_cast<std::int64_t>(mail.exact_bytes);
  }
  const std::size_t incoming = mine.bytes * static_cast<std::size_t>(context_.ranks.size());
  const auto received = std::make_shared_for_overwrite<std::byte[]>(incoming);
  arriving_.push_back(
      {received, context_.ledger.charge(MemoryCategory::kBuckets, total + incoming)});
  begun({.bucket = ready.bucket},
        context_.ranks.all_to_all(
            bytes_span(sent, total), bytes_span_to(received, incoming), std::move(counts)));
}

void CompressedPath::finished(std::size_t b, const Span&) {
  const Arriving arrived = std::move(arriving_.front());
  arriving_.pop_front();
  const std::size_t bytes = routes_[b].to[static_cast<std::size_t>(context_.ranks.rank())].bytes;
  for (int rank = 0; rank < context_.ranks.size(); ++rank) {
    take_in(b, arrived.bytes.get() + static_cast<std::size_t>(rank) * bytes);
  }
}

void CompressedPath::take_in(std::size_t b, const std::byte* mail) {
  Route& route = routes_[b];
  const std::size_t u = bucket(b).unit;
  const auto& runs = route.to[static_cast<std::size_t>(context_.ranks.rank())].runs;
  const std::byte* from = mail + runs.size();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const BlockRun& run = runs[i];
    if (mail[i] != std::byte{0}) {
      const Span place = route.has_sums[i] != 0 ? Span() : blocks_.place(u, run.range);
      if (place.numel() > 0) {
        coder_.decode(from, floats_in(place), key_of(u, run, /*sum=*/false));
      } else {
        const std::span<float> values = values_of(run.range);
        coder_.decode(from, values, key_of(u, run, /*sum=*/false));
        blocks_.add(u, run.range, values.data(), !route.has_sums[i]);
      }
      route.has_sums[i] = 1;
      used_[context_.plan.units[u].parameters[run.parameter]] = 1;
    }
    from += bytes_of(run.count);
  }
}

void CompressedPath::finish() {
  BucketPath::finish();
  for (std::size_t u = 0; u < owners_.size(); ++u) {
    if (!owners_[u].empty()) {
      round_sums(u);
    }
  }
}

void CompressedPath::round_sums(std::size_t u) {
  const Mail& mine = owners_[u][static_cast<std::size_t>(context_.ranks.rank())];
  const std::int64_t block = coder_.compressor().format().block;
  std::vector<std::byte> coded(bytes_of(blocks_in(mine.runs)));
  std::byte* to = coded.data();
  for (const BlockRun& run : mine.runs) {
    const bool used = used_[context_.plan.units[u].parameters[run.parameter]] != 0;
    for (std::int64_t done = 0; done < run.count; done += kBlocksAtATime) {
      const std::int64_t count = std::min(kBlocksAtATime, run.count - done);
      const std::int64_t begin = run.range.begin + done * block;
      const Range range{begin, std::min(run.range.end, begin + count * block)};
      const BlockCoder::Carried carried = residuals_.of_sum(u, begin);
      if (used) {
        BlockKey key = key_of(u, run, /*sum=*/true);
        key.block += done;
        if (const Span place = blocks_.place(u, range); place.numel() > 0) {
          coder_.encode(floats_in(place), to, key, carried);
          coder_.decode(to, floats_in(place), key);
        } else {
          const std::span<float> values = values_of(range);
          blocks_.read(u, range, values.data());
          coder_.encode(values, to, key, carried);
          coder_.decode(to, values, key);
          blocks_.write(u, range, values.data());
        }
      } else {
        carried.rest.wait(range.size());
      }
      to += bytes_of(count);
    }
  }
  if (context_.plan.ownership.reach() == SumsReach::kEverywhere && context_.ranks.size() > 1) {
    gather_sums(u, coded);
  }
}

// As GradientSums::gather_whole, in fewer bytes. What nobody has contributed to is zeros, at which
// nobody looks (Agreement::used).
void CompressedPath::gather_sums(std::size_t u, const std::vector<std::byte>& own) {
  Counts counts;
  std::int64_t total = 0;
  for (const Mail& mail : owners_[u]) {
    counts.push_back(static_cast<std::int64_t>(bytes_of(blocks_in(mail.runs))));
    total += counts.back();
  }
  std::vector<std::byte> all(static_cast<std::size_t>(total));
  const auto others = static_cast<std::size_t>(context_.ranks.size() - 1);
  const auto me = static_cast<std::size_t>(context_.ranks.rank());
  use_.sent_bytes += static_cast<std::int64_t>(own.size() * others);
  use_.exact_bytes += static_cast<std::int64_t>(owners_[u][me].exact_bytes * others);
  context_.ranks
      .all_gather({own.data(), static_cast<std::int64_t>(own.size()), Dtype::kUint8},
                  {all.data(), total, Dtype::kUint8},
                  counts)
      .wait();
  const std::byte* from = all.data();
  for (std::size_t owner = 0; owner < owners_[u].size(); ++owner) {
    const Range theirs = context_.plan.ownership.ranges(u)[owner];
    for (const BlockRun& run : owners_[u][owner].runs) {
      if (owner != me) {
        const Range part = intersection(run.range, theirs);
        const Span place = sums_.at(u, part);
        const bool whole = part == run.range;
        const std::span<float> values = whole ? floats_in(place) : values_of(run.range);
        coder_.decode(from, values, key_of(u, run, /*sum=*/true));
        if (!whole) {
          device::host().copy(
              place,
              {values.data() + (part.begin - run.range.begin), part.size(), Dtype::kFloat32});
        }
      }
      from += bytes_of(run.count);
    }
  }
  sums_.gathered(u);
}

void CompressedPath::end_step(StepOutcome outcome) {
  BucketPath::end_step(outcome);
  if (outcome == StepOutcome::kUpdated) {
    residuals_.keep();
  }
  std::ranges::fill(used_, 0);
  for (Route& route : routes_) {
    std::ranges::fill(route.has_sums, 0);
  }
}

CompressionUse CompressedPath::compression() const {
  CompressionUse use = use_;
  use.seconds = coder_.seconds();
  return use;
}

}  // namespace trireme::detail
