// Preprocessing of one vitft run in C++17, with the standard library only.
//
// SPDX-License-Identifier: Apache-2.0, like vitft; this file may be copied into other programs.
//
//   g++ -std=c++17 -O2 -ffp-contract=off preprocess.cpp -o preprocess && ./preprocess
//
// checks all vectors in the folder `vectors` in the current folder (or in the folder given as an
// argument). Define VITFT_NO_MAIN to include the file in another program. Every step is described
// in preprocessing.json. The caller decodes files. -ffp-contract=off keeps compilers for ARM from
// fusing a multiplication and an addition, which rounds differently.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace vitft {

// Constants of the run: begin
constexpr int HEIGHT = 224, WIDTH = 224;
constexpr double CROP_FRACTION = 0.9;
const std::string FIT = "crop";
const std::string INTERPOLATION = "bicubic";
const std::vector<double> MEAN = {0.5, 0.5, 0.5};
const std::vector<double> STD = {0.5, 0.5, 0.5};
const std::vector<double> GREY_RANGE = {};
// Constants of the run: end

constexpr double MAX_SIDE_RATIO = 100, MAX_PIXELS_RESIZED = 67108864;
constexpr int64_t FIXED_POINT = 4194304;  // 2^22
constexpr double PI = 3.14159265358979323846;

using Bytes = std::vector<uint8_t>;

// The pixels of a decoded file, row by row, with interleaved channels.
struct Pixels {
    std::vector<double> samples;  // holds every depth exactly
    int width = 0, height = 0;
    std::string mode = "RGB";  // L, LA, RGB, RGBA or CMYK; L or RGB if the depth is not 8
    std::string depth = "8";   // 8, 12 or 16: unsigned bits; i32: signed; f32: floating point
    int orientation = 1;       // EXIF, 1 to 8
    double transparent = -1;   // value of L pixels with more than 8 bits that is shown as white
};

// An RGB image, (height, width, 3).
struct Image {
    Bytes data;
    int width = 0, height = 0;
};

inline int channels_of(const std::string& mode) {
    return mode == "L" ? 1 : mode == "LA" ? 2 : mode == "RGB" ? 3 : 4;
}

// Divide an integer from 0 to 255 * 255 by 255, rounded as in Pillow.
inline int div255(int product) {
    const int shifted = product + 128;
    return ((shifted >> 8) + shifted) >> 8;
}

// Convert grey or RGB with more than 8 bits to bytes.
inline Bytes bytes_of(const Pixels& pixels) {
    const auto& values = pixels.samples;
    const bool has_range = !GREY_RANGE.empty(), is_float = pixels.depth == "f32";
    const bool is_unit = std::none_of(values.begin(), values.end(), [](double v) { return v > 1; });
    Bytes grey(values.size());
    for (size_t i = 0; i < values.size(); i++) {
        const double value = values[i];
        if (has_range && pixels.depth == "i32") {
            const double width = GREY_RANGE[1] - GREY_RANGE[0];
            const double level = std::clamp(value - GREY_RANGE[0], 0.0, width);
            grey[i] = static_cast<uint8_t>(std::nearbyint(level * (255 / width)));
        } else if (has_range) {
            const double width = GREY_RANGE[1] - GREY_RANGE[0];
            float level = static_cast<float>(value) - static_cast<float>(GREY_RANGE[0]);
            level = std::isnan(level) ? 0 : std::clamp(level, 0.0f, static_cast<float>(width));
            level *= static_cast<float>(255 / width);
            grey[i] = static_cast<uint8_t>(std::nearbyint(level));
        } else if (is_float) {
            const double level = std::isnan(value) ? 0 : std::clamp(value, -1.0, 255.0);
            const float scaled = static_cast<float>(level) * (is_unit ? 255.0f : 1.0f);
            grey[i] = static_cast<uint8_t>(std::clamp(std::nearbyint(scaled), 0.0f, 255.0f));
        } else {
            const int bits = pixels.depth == "12" ? 12 : 16;
            const double most = (1 << bits) - 1;
            grey[i] = static_cast<uint8_t>(
                static_cast<int>(std::clamp(value, 0.0, most)) >> (bits - 8));
        }
        if (pixels.transparent >= 0 && value == pixels.transparent && (has_range || !is_float)) {
            grey[i] = 255;
        }
    }
    return grey;
}

// Convert pixels to RGB bytes composited on white; grey for a model with one channel.
inline Image rgb_bytes_of(const Pixels& pixels) {
    const std::string& mode = pixels.mode;
    const Bytes samples = pixels.depth == "8"
        ? Bytes(pixels.samples.begin(), pixels.samples.end())
        : bytes_of(pixels);
    const int channels = channels_of(mode);
    Image image{Bytes(3 * size_t(pixels.width) * pixels.height), pixels.width, pixels.height};
    for (size_t i = 0; i < image.data.size() / 3; i++) {
        const uint8_t* pixel = &samples[i * channels];
        uint8_t* rgb = &image.data[3 * i];
        for (int c = 0; c < 3; c++) {
            int level = pixel[channels < 3 ? 0 : c];
            if (mode == "LA" || mode == "RGBA") {
                const int alpha = pixel[channels - 1];
                level = div255(255 * (255 - alpha) + level * alpha);
            } else if (mode == "CMYK") {
                const int light = 255 - pixel[3];
                level = std::max(0, light - div255(level * light));
            }
            rgb[c] = static_cast<uint8_t>(level);
        }
        if (MEAN.size() == 1) {
            const int grey = (19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + 32768) >> 16;
            rgb[0] = rgb[1] = rgb[2] = static_cast<uint8_t>(grey);
        }
    }
    return image;
}

// Rotate and flip an image so that it is upright.
inline Image turned(const Image& image, int orientation) {
    const auto is_one_of = [orientation](std::array<int, 4> some) {
        return std::find(some.begin(), some.end(), orientation) != some.end();
    };
    const bool swaps = is_one_of({5, 6, 7, 8});
    const bool flips_rows = is_one_of({3, 4, 7, 8}), flips_columns = is_one_of({2, 3, 6, 7});
    Image result{Bytes(image.data.size()), swaps ? image.height : image.width,
                 swaps ? image.width : image.height};
    for (int y = 0; y < result.height; y++) {
        for (int x = 0; x < result.width; x++) {
            const size_t row = flips_rows ? result.height - 1 - y : y;
            const size_t column = flips_columns ? result.width - 1 - x : x;
            const size_t source = swaps ? column * image.width + row : row * image.width + column;
            std::copy_n(&image.data[3 * source], 3,
                        &result.data[3 * (size_t(y) * result.width + x)]);
        }
    }
    return result;
}

// Return the height and width to which an image is resized before the crop.
inline std::array<int, 2> resized_sides_of(int height, int width) {
    const int tall = static_cast<int>(std::floor(HEIGHT / CROP_FRACTION));
    const int wide = static_cast<int>(std::floor(WIDTH / CROP_FRACTION));
    if (FIT == "squash") return {tall, wide};
    if (tall == wide) {
        const double most = std::max(height, width), least = std::min(height, width);
        const int longer = static_cast<int>(tall * most / least);
        return width <= height ? std::array{longer, tall} : std::array{tall, longer};
    }
    const double ratio = std::min(height / double(tall), width / double(wide));
    return {std::max(tall, static_cast<int>(std::nearbyint(height / ratio))),
            std::max(wide, static_cast<int>(std::nearbyint(width / ratio)))};
}

// Return sin(pi x) / (pi x).
inline double sinc_at(double x) { return x == 0 ? 1 : std::sin(x * PI) / (x * PI); }

// Return the value of the filter at a distance of `x` pixels.
inline double filter_at(double x) {
    if (INTERPOLATION == "lanczos") {
        return -3 <= x && x < 3 ? sinc_at(x) * sinc_at(x / 3) : 0;
    }
    x = std::abs(x);
    if (INTERPOLATION == "bilinear") return x < 1 ? 1 - x : 0;
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;  // bicubic with a = -0.5
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

// The first pixel that contributes to a position, and the weights in units of 2^-22.
struct Filter {
    int start;
    std::vector<int64_t> weights;
};

inline Filter filter_weights(double begin, double scale, int position, int length) {
    const double wider = std::max(scale, 1.0);
    const double support = INTERPOLATION == "bilinear" ? 1 : INTERPOLATION == "bicubic" ? 2 : 3;
    const double centre = begin + (position + 0.5) * scale, reach = support * wider;
    const int start = std::max(0, static_cast<int>(centre - reach + 0.5));
    const int end = std::min(length, static_cast<int>(centre + reach + 0.5));
    std::vector<double> values;
    double total = 0;
    for (int x = start; x < end; x++) {
        values.push_back(filter_at((x - centre + 0.5) * (1.0 / wider)));
        total += values.back();
    }
    Filter filter{start, {}};
    for (const double value : values) {
        const double scaled = (total != 0 ? value / total : value) * FIXED_POINT;
        filter.weights.push_back(static_cast<int64_t>(value < 0 ? scaled - 0.5 : scaled + 0.5));
    }
    return filter;
}

// Return the filters of `count` positions from `first`, for an axis resized to `size`.
inline std::vector<Filter> filters_of(std::array<float, 2> box, int size, int first, int count,
                                      int length) {
    const double begin = box[0], scale = double(box[1] - box[0]) / size;
    std::vector<Filter> filters;
    double place = begin + scale * 0.5;
    const bool is_copy = box[0] == 0 && box[1] == float(length) && size == length;
    for (int i = 0; i < first + count; i++, place += scale) {
        if (i < first) continue;
        if (INTERPOLATION == "nearest") {
            filters.push_back({static_cast<int>(std::floor(place)), {FIXED_POINT}});
        } else if (is_copy) {
            filters.push_back({i, {FIXED_POINT}});
        } else {
            filters.push_back(filter_weights(begin, scale, i, length));
        }
    }
    return filters;
}

// Resize an image along one axis (0: rows) to `size`, computing only `count` positions.
inline Image resampled(const Image& image, int axis, std::array<float, 2> box, int size, int first,
                       int count) {
    const int length = axis ? image.width : image.height;
    const auto filters = filters_of(box, size, first, count, length);
    Image result{{}, axis ? count : image.width, axis ? image.height : count};
    result.data.resize(3 * size_t(result.width) * result.height);
    for (int y = 0; y < result.height; y++) {
        for (int x = 0; x < result.width; x++) {
            const Filter& filter = filters[axis ? x : y];
            const size_t row = axis ? y : filter.start, column = axis ? filter.start : x;
            const uint8_t* source = &image.data[3 * (row * image.width + column)];
            const size_t step = axis ? 3 : 3 * size_t(image.width);
            for (int c = 0; c < 3; c++) {
                int64_t total = FIXED_POINT / 2;
                for (size_t k = 0; k < filter.weights.size(); k++) {
                    total += filter.weights[k] * source[k * step + c];
                }
                const double level = std::floor(double(total) / FIXED_POINT);
                result.data[3 * (size_t(y) * result.width + x) + c] =
                    static_cast<uint8_t>(std::clamp(level, 0.0, 255.0));
            }
        }
    }
    return result;
}

// Resize and crop an upright image to the view, (HEIGHT, WIDTH, 3).
inline Image view_of(Image image) {
    const std::array<int, 2> sides = {image.height, image.width}, crop = {HEIGHT, WIDTH};
    std::array<int, 2> target = resized_sides_of(image.height, image.width), first;
    std::array<std::array<float, 2>, 2> boxes;
    for (int i : {0, 1}) {
        first[i] = static_cast<int>(std::nearbyint((target[i] - crop[i]) / 2.0));
        boxes[i] = {0.0f, float(sides[i])};
    }
    const double most = std::max(target[0], target[1]), least = std::min(target[0], target[1]);
    const bool is_large = most / least > MAX_SIDE_RATIO || most * least > MAX_PIXELS_RESIZED;
    if (FIT == "crop" && is_large) {  // only the part inside the crop is resized
        for (int i : {0, 1}) {
            const double scale = sides[i] / double(target[i]);
            boxes[i] = {float(first[i] * scale), float((first[i] + crop[i]) * scale)};
        }
        first = {0, 0};
        target = crop;
    }
    const int lost_rows = sides[0] - target[0], lost_columns = sides[1] - target[1];
    const bool rows_first = lost_rows > 0 && lost_rows > 2 * int64_t(lost_columns);
    for (int k : {0, 1}) {
        const int axis = rows_first ? k : 1 - k;
        image = resampled(image, axis, boxes[axis], target[axis], first[axis], crop[axis]);
    }
    return image;
}

// Normalise a view, and return it as (1, channels, HEIGHT, WIDTH).
inline std::vector<float> tensor_of(const Image& view) {
    const size_t size = size_t(HEIGHT) * WIDTH;
    std::vector<float> tensor(MEAN.size() * size);
    for (size_t c = 0; c < MEAN.size(); c++) {
        const float mean = static_cast<float>(MEAN[c]), std = static_cast<float>(STD[c]);
        for (size_t i = 0; i < size; i++) {
            tensor[c * size + i] = (view.data[3 * i + c] / 255.0f - mean) / std;
        }
    }
    return tensor;
}

// Return the model's input, (1, channels, HEIGHT, WIDTH).
inline std::vector<float> preprocess(const Pixels& pixels) {
    return tensor_of(view_of(turned(rgb_bytes_of(pixels), pixels.orientation)));
}

inline std::string read_content(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path.string());
    return {std::istreambuf_iterator<char>(file), {}};
}

// Convert little-endian bytes to numbers; the machine must be little-endian too.
template <typename Number>
std::vector<double> numbers_of(const std::string& content, size_t begin) {
    std::vector<Number> numbers((content.size() - begin) / sizeof(Number));
    std::memcpy(numbers.data(), content.data() + begin, numbers.size() * sizeof(Number));
    return {numbers.begin(), numbers.end()};
}

// Read a .pixels file: one line of text, then the samples, row by row, little-endian.
inline Pixels read_pixels(const std::filesystem::path& path) {
    const std::string content = read_content(path);
    const size_t end = content.find('\n');
    std::istringstream line(content.substr(0, end));
    Pixels pixels;
    line >> pixels.width >> pixels.height >> pixels.mode >> pixels.depth >> pixels.orientation >>
        pixels.transparent;
    pixels.samples = pixels.depth == "8"     ? numbers_of<uint8_t>(content, end + 1)
                     : pixels.depth == "i32" ? numbers_of<int32_t>(content, end + 1)
                     : pixels.depth == "f32" ? numbers_of<float>(content, end + 1)
                                             : numbers_of<uint16_t>(content, end + 1);
    return pixels;
}

inline bool is_equal(const void* found, size_t size, const std::string& expected) {
    return expected.size() == size && std::memcmp(found, expected.data(), size) == 0;
}

}  // namespace vitft

#ifndef VITFT_NO_MAIN
int main(int count, char** arguments) {
    using namespace vitft;
    int found = 0;
    std::vector<std::string> wrong;
    for (const auto& entry :
         std::filesystem::directory_iterator(count > 1 ? arguments[1] : "vectors")) {
        auto path = entry.path();
        if (path.extension() != ".pixels") continue;
        found++;
        const Pixels pixels = read_pixels(path);
        const Image view = view_of(turned(rgb_bytes_of(pixels), pixels.orientation));
        const std::vector<float> tensor = tensor_of(view);
        const std::string bytes = read_content(path.replace_extension(".view"));
        const std::string floats = read_content(path.replace_extension(".tensor"));
        if (!is_equal(view.data.data(), view.data.size(), bytes)) {
            wrong.push_back(path.stem().string() + " (bytes)");
        } else if (!is_equal(tensor.data(), tensor.size() * sizeof(float), floats)) {
            wrong.push_back(path.stem().string() + " (floats)");
        }
    }
    std::cout << found - wrong.size() << " of " << found << " vectors equal";
    for (size_t i = 0; i < wrong.size(); i++) {
        std::cout << (i ? ", " : ", different: ") << wrong[i];
    }
    std::cout << "\n";
    return wrong.empty() && found ? 0 : 1;
}
#endif
