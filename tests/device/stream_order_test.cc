// What streams and events promise, on the host and on a device whose work is late.

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "support/late_device.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using device::Event;
using std::chrono::milliseconds;

constexpr milliseconds kPlenty{60'000};

Span late(std::vector<float>& values, std::shared_ptr<const void> owner = {}) {
  return {values.data(),
          static_cast<std::int64_t>(values.size()),
          Dtype::kFloat32,
          std::move(owner),
          testing::kLateDevice};
}

TEST(HostStream, HasDoneItsWorkWhenACallReturns) {
  const std::vector<float> from = {1, 2, 3};
  std::vector<float> to(3);
  device::host().copy(to, from);
  EXPECT_EQ(to, from);
  EXPECT_TRUE(device::host().record().passed());
  EXPECT_TRUE(Event().passed());
  EXPECT_EQ(device::host().device(), Device{});
}

TEST(Stream, DoesItsWorkInOrderAndLaterThanTheCall) {
  testing::WithLateDevice with;
  with.stream().pause();
  std::vector<float> a = {1, 2};
  std::vector<float> b(2);
  std::vector<float> c(2);
  with.stream().copy(late(b), late(a));
  with.stream().copy(late(c), late(b));
  with.stream().clear(late(a));
  const Event done = with.stream().record();
  EXPECT_FALSE(done.passed());
  EXPECT_FALSE(done.wait(Deadline(milliseconds(1))));
  EXPECT_EQ(c, std::vector<float>(2));
  with.stream().resume();
  ASSERT_TRUE(done.wait(Deadline(kPlenty)));
  EXPECT_EQ(c, (std::vector<float>{1, 2}));
  EXPECT_EQ(a, std::vector<float>(2));
}

TEST(Stream, WaitsForAnEventOfAnother) {
  testing::WithLateDevice with;
  const auto second = with.driver().make_stream();
  with.stream().pause();
  std::vector<float> a = {5};
  std::vector<float> b(1);
  std::vector<float> c(1);
  with.stream().copy(late(b), late(a));
  second->wait(with.stream().record());
  second->copy(late(c), late(b));
  const Event done = second->record();
  EXPECT_FALSE(done.wait(Deadline(milliseconds(20))));
  EXPECT_EQ(c[0], 0);
  with.stream().resume();
  ASSERT_TRUE(done.wait(Deadline(kPlenty)));
  EXPECT_EQ(c[0], 5);
}

TEST(HostStream, WaitsForAnEventOfAnotherDevice) {
  testing::WithLateDevice with;
  std::vector<float> a = {7};
  std::vector<float> b(1);
  with.stream().copy(late(b), late(a));
  device::host().wait(with.stream().record());
  EXPECT_EQ(b[0], 7);
}

TEST(Stream, KeepsTheMemoryOfItsSpansUntilItsWorkIsDone) {
  testing::WithLateDevice with;
  with.stream().pause();
  auto from = std::make_shared<std::vector<float>>(1000, 3.0F);
  const std::weak_ptr<const void> alive = from;
  std::vector<float> to(1000);
  with.stream().copy(late(to), late(*from, from));
  from.reset();
  EXPECT_FALSE(alive.expired());
  const Event done = with.stream().record();
  with.stream().resume();
  ASSERT_TRUE(done.wait(Deadline(kPlenty)));
  EXPECT_EQ(to, std::vector<float>(1000, 3.0F));
  EXPECT_TRUE(alive.expired());
}

TEST(Stream, ReadsItsListsBeforeACallReturns) {
  testing::WithLateDevice with;
  with.stream().pause();
  std::vector<float> a = {1, 2, 3};
  std::vector<float> b = {10, 20, 30};
  std::vector<float> sums(3);
  {
    const std::vector<Range> absent = {{1, 2}};
    std::vector<device::Term> terms = {
        {reinterpret_cast<std::byte*>(a.data())},
        {reinterpret_cast<std::byte*>(b.data()), absent.data(), absent.size()}};
    std::vector<std::byte*> outputs = {reinterpret_cast<std::byte*>(sums.data())};
    with.stream().reduce({.dtype = Dtype::kFloat32,
                          .output_dtype = Dtype::kFloat32,
                          .range = {0, 3},
                          .terms = terms,
                          .outputs = outputs});
    terms.assign(2, {nullptr});
    outputs.assign(1, nullptr);
  }
  with.stream().resume();
  ASSERT_TRUE(with.stream().record().wait(Deadline(kPlenty)));
  EXPECT_EQ(sums, (std::vector<float>{11, 2, 33}));
}

TEST(Stream, LeavesResultsInMemoryThatTheHostSees) {
  testing::WithLateDevice with;
  struct Results {
    device::NotFinite not_finite;
    double largest;
    SquareSum sum;
  };
  {
    const auto memory = device::Buffer::visible_to(testing::kLateDevice, sizeof(Results));
    EXPECT_TRUE(memory.device().is_host());
    auto* results = reinterpret_cast<Results*>(memory.data());
    std::vector<float> a = {1, -3, 2};
    std::vector<float> b = {4, 0, std::numeric_limits<float>::infinity()};
    const SquareQuanta quanta = SquareQuanta::of(4, 6);
    with.stream().check_finite(late(a), &results->not_finite);
    with.stream().largest(late(a), {}, &results->largest);
    with.stream().squares(late(a), quanta, {}, &results->sum);
    ASSERT_TRUE(with.stream().record().wait(Deadline(kPlenty)));
    EXPECT_EQ(results->not_finite, 0U);
    EXPECT_EQ(results->largest, 3);
    EXPECT_EQ(results->sum.total(), 14);
    // Results are added to what is there.
    with.stream().squares(late(b).part(0, 2), quanta, {}, &results->sum);
    with.stream().largest(late(b).part(0, 2), {}, &results->largest);
    with.stream().check_finite(late(b), &results->not_finite);
    with.stream().check_finite(late(a), &results->not_finite);
    ASSERT_TRUE(with.stream().record().wait(Deadline(kPlenty)));
    EXPECT_EQ(results->not_finite, 1U);
    EXPECT_EQ(results->largest, 4);
    EXPECT_EQ(results->sum.total(), 30);
    EXPECT_EQ(with.driver().allocated, 1);
  }
  EXPECT_EQ(with.driver().allocated, 0) << "memory goes back to the driver that gave it";
}

TEST(Driver, IsOfOneKindAndNotOfAnotherWithTheSameNumber) {
  testing::WithLateDevice with;
  const Device other{DeviceType{99}, testing::kLateDevice.index};
  const std::string message = testing::message_of<ConfigError>([&] { device::driver(other); });
  EXPECT_NE(message.find("this program has no driver for it"), std::string::npos) << message;
}

TEST(HostStream, RefusesMemoryOfAnotherDevice) {
  std::vector<float> a(3);
  std::vector<float> b(3);
  for (const auto& call :
       std::vector<std::function<void()>>{[&] { device::host().copy(late(a), b); },
                                          [&] { device::host().copy(a, late(b)); },
                                          [&] { device::host().clear(late(a)); },
                                          [&] { device::host().largest(late(a), {}, nullptr); }}) {
    const std::string message = testing::message_of<InternalError>(call);
    EXPECT_NE(message.find("the host cannot work on memory of cuda:0"), std::string::npos)
        << message;
  }
}

TEST(Driver, OfADeviceThatIsNotThereIsRefusedByName) {
  const std::string message = testing::message_of<ConfigError>([] {
    device::Buffer(100, {DeviceType::kCuda, 3});
  });
  EXPECT_NE(message.find("memory of cuda:3 was asked for, but this program has no driver for it"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace trireme
