// Boxes and points of an image, moved with its pixels as torchvision.transforms.v2 (0.28) moves
// them, in single precision. Coordinates are in pixels; (0, 0) is the image's upper left corner.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "augment/operations.h"
#include "augment/steps.h"
#include "geometry/crops.h"

namespace fastdata {

struct TargetBox {
  float x0, y0, x1, y1;
};

struct TargetPoint {
  float x, y;
};

struct Targets {
  std::vector<TargetBox> boxes;
  std::vector<int32_t> numbers;  // of the boxes that are left: their places among the first ones
  std::vector<int32_t> passed;   // of each of the first ones: how many times `sanitize` left it
  std::vector<TargetPoint> points;
  int width = 0, height = 0;                // of the image
  int source_width = 0, source_height = 0;  // of the image at the beginning
  // Row by row: from the coordinates of the image at the beginning to those of the image.
  double matrix[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};

  /// Begins with these boxes and points of an image.
  void begin(const TargetBox* boxes, size_t box_count, const TargetPoint* points,
             size_t point_count, int width, int height);
  /// Does what the operation does to the image.
  void move(const Call& call);

 private:
  void crop(float left, float top, int width, int height);
  /// The same; boxes whose middle is outside become zeros.
  void iou_crop(float left, float top, int width, int height);
  void shift(float x, float y);
  void resize(int width, int height);
  void flip(bool across);
  /// To an image of a size, whose pixels are taken from elsewhere by the inverse.
  void warp(const double (&inverse)[9], int width, int height);
  void clamp();
  void sanitize(float min_size, float min_area);
  void then(const double (&step)[9]);
};

/// The part of a box that a crop has, of both together.
float overlap(const TargetBox& box, const TargetBox& crop);

/// Whether the middle of a box is within a crop.
bool is_centred_in(const TargetBox& box, const TargetBox& crop);

/// Draws torchvision's RandomIoUCrop of an image, from a key of its own; none, if that is drawn.
/// Its parameters have single precision. False: no crop in 1000 rounds, or the parts are not from 0
/// to 1.
bool draw_iou_crop(const steps::IouCrop& step, uint64_t key, int width, int height,
                   const std::vector<TargetBox>& boxes, std::optional<CropBox>& drawn);

}  // namespace fastdata
