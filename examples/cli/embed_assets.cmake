# Makes OUT, a header with the text of each of FILES (names in DIR): cmake -DOUT=... -DDIR=...
# -DFILES=a;b -P embed_assets.cmake
set(text "// Made by examples/cli/embed_assets.cmake.\n#pragma once\n\n#include <string_view>\n\n")
string(APPEND text "namespace gradus::cli {\n\nstruct HtmlAsset {\n  std::string_view name, text;\n};\n\n")
string(APPEND text "inline constexpr HtmlAsset kHtmlAssets[] = {\n")
foreach(file IN LISTS FILES)
  file(READ ${DIR}/${file} content HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" content "${content}")
  string(APPEND text "    {\"${file}\", \"${content}\"},\n")
endforeach()
string(APPEND text "};\n\n}  // namespace gradus::cli\n")
file(WRITE ${OUT} "${text}")
