#include "rotary.h"

#include <cstdint>

namespace octavo {
namespace {

// x = quadrant * pi/2 + r, |r| <= pi/4. pi/2 in three parts whose products with a quadrant below 2^21, which is a
// context of three million tokens, are exact enough for 1e-9 (Cody and Waite 1980). Beyond that r loses a bit for each
// doubling of the context.
constexpr double kTwoOverPi = 0.63661977236758134308;
constexpr double kHalfPi1 = 1.5707963267341256;
constexpr double kHalfPi2 = 6.0771005063039866e-11;
constexpr double kHalfPi3 = 2.0222662487959506e-21;

double sine(double r) {
  const double z = r * r;
  return r + r * z *
                 (-1.0 / 6 +
                  z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800 + z / 6227020800.0)))));
}

double cosine(double r) {
  const double z = r * r;
  return 1.0 +
         z * (-0.5 + z * (1.0 / 24 +
                          z * (-1.0 / 720 +
                               z * (1.0 / 40320 + z * (-1.0 / 3628800 + z * (1.0 / 479001600 - z / 87178291200.0))))));
}

}  // namespace

void rotary_factors(int position, const float* inv_freq, int half, float scale, float* out) {
  for (int i = 0; i < half; i++) {
    const double angle = double(float(position) * inv_freq[i]);
    const int64_t quadrant = int64_t(angle * kTwoOverPi + 0.5);  // angles are not negative
    const double q = double(quadrant);
    const double r = ((angle - q * kHalfPi1) - q * kHalfPi2) - q * kHalfPi3;
    const double c = cosine(r), s = sine(r);
    switch (quadrant & 3) {
      case 0: out[i] = float(c), out[half + i] = float(s); break;
      case 1: out[i] = float(-s), out[half + i] = float(c); break;
      case 2: out[i] = float(-c), out[half + i] = float(-s); break;
      default: out[i] = float(s), out[half + i] = float(-c); break;
    }
    out[i] *= scale, out[half + i] *= scale;
  }
}

}  // namespace octavo
