#pragma once

#include "device/driver.h"

namespace trireme::device {

Driver& host_driver();

}  // namespace trireme::device
