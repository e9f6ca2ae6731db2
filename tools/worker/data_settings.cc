#include "data_settings.h"

#include "trireme/settings/run_folder.h"
#include "trireme/settings/values.h"

namespace trireme::worker {
namespace {

// Normalised values are near 0, where all types have many numbers.
CsvOptions::Rounded rounded(const TrainSettings& s) {
  if (s.normalise != Normalise::kNone || s.precision == TrainPrecision::kFloat32) {
    return CsvOptions::Rounded::kFloat32;
  }
  return s.precision == TrainPrecision::kFloat16 ? CsvOptions::Rounded::kFloat16
                                                 : CsvOptions::Rounded::kBFloat16;
}

}  // namespace

DataSource source_of(const TrainSettings& s) {
  DataSource source;
  source.path = data_path(s.data, s);
  source.evaluation = data_path(s.eval_data, s);
  source.format = s.format;
  source.evaluation_fraction = s.folds > 0 ? 0 : s.eval_fraction;
  source.for_folds = s.folds > 0;
  source.seed = s.seed;
  source.sequence = s.sequence > 0 ? s.sequence : 64;
  source.stride = s.stride;
  source.vocabulary = s.vocabulary;
  source.csv.target = s.target;
  source.csv.header = s.header;
  source.csv.separator = separator_of(s);
  source.csv.categorical = s.categorical;
  source.csv.unseen = s.unseen;
  source.csv.missing = s.missing;
  source.csv.missing_values = s.missing_values;
  source.csv.rounded = rounded(s);
  source.regression = s.regression;
  return source;
}

}  // namespace trireme::worker
