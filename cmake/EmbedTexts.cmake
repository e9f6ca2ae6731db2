# cmake -DOUTPUT=file.cc -DHEADER=room/file.h -DNAMESPACE=a::b -DFUNCTION=name -DROOT=src "-DFILES=a|b" -P EmbedTexts.cmake
# Writes a source with a function that returns the texts of these files, which HEADER declares.

string(REPLACE "|" ";" FILES "${FILES}")
set(rows "")
foreach(file IN LISTS FILES)
  file(READ "${ROOT}/${file}" text)
  string(APPEND rows "    {\"${file}\", R\"text(${text})text\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/EmbedTexts.cmake.
#include \"${HEADER}\"

namespace ${NAMESPACE} {

std::span<const ::trireme::device::SourceText> ${FUNCTION}() {
  static constexpr ::trireme::device::SourceText kTexts[] = {
${rows}  };
  return kTexts;
}

}  // namespace ${NAMESPACE}
")
