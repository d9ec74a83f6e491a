// The EXIF orientation of a JPEG.
#pragma once

#include "jpeg/jpeg_header.h"

namespace fastdata {

/// In the place of an orientation: the one of the image's header.
constexpr int kOrientationOfHeader = -1;

/// The orientation that Pillow 13's `Image.getexif` finds: 1 to 8, and 1 where there is none.
/// 0: the EXIF data are unusual or damaged, and what they mean is for Pillow to say.
int exif_orientation(const JpegHeader& header);

}  // namespace fastdata
