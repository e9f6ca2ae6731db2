#include "trireme/core/memory_ledger.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(MemoryLedger, CountsWhatIsHeldAndTheMostThatWas) {
  const auto ledger = MemoryLedger::create();
  {
    MemoryLedger::Charge a = ledger->charge(MemoryCategory::kParameters, 100);
    MemoryLedger::Charge b = ledger->charge(MemoryCategory::kBuckets, 7);
    {
      const MemoryLedger::Charge c = ledger->charge(MemoryCategory::kParameters, 50);
      EXPECT_EQ(ledger->use().of(MemoryCategory::kParameters), 150);
    }
    const MemoryLedger::Charge moved = std::move(a);
    b = {};
    EXPECT_EQ(ledger->use().of(MemoryCategory::kParameters), 100);
    EXPECT_EQ(ledger->use().total(), 100);
  }
  const MemoryUse use = ledger->use();
  EXPECT_EQ(use.total(), 0);
  EXPECT_EQ(use.peak[static_cast<std::size_t>(MemoryCategory::kParameters)], 150);
  EXPECT_EQ(use.peak[static_cast<std::size_t>(MemoryCategory::kBuckets)], 7);
}

}  // namespace
}  // namespace trireme
