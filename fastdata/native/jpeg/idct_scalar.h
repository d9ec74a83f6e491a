#pragma once

#include "jpeg/idct.h"

namespace fastdata {

void idct_row_scalar(const BlockRow& row, const uint16_t quantisation[64], uint8_t* out,
                     size_t stride);

}  // namespace fastdata
