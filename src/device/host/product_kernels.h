#pragma once

#include "device/product.h"

namespace trireme::device {

void multiply_matrices(const Product& product);

}  // namespace trireme::device
