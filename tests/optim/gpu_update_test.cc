// Every rule's update on a GPU, against the host's: the same formula, the same bytes.

#include "optim/updates_on_device.h"

namespace trireme {
namespace {

class GpuUpdate : public testing::GpuTest {};

TEST_F(GpuUpdate, OfEveryFormulaHasTheHostsBytes) {
  testing::expect_host_bytes_of_all_rules();
}

TEST_F(GpuUpdate, OfLambHasTheHostsBytes) {
  testing::expect_host_bytes_of_lamb();
}

TEST_F(GpuUpdate, OfAdafactorHasTheHostsBytes) {
  testing::expect_host_bytes_of_adafactor();
}

TEST_F(GpuUpdate, OfMuonHasTheHostsBytes) {
  testing::expect_host_bytes_of_muon();
}

}  // namespace
}  // namespace trireme
