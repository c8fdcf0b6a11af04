# memo for vcpkg:  vcpkg install memo --overlay-ports=packaging/vcpkg
if(DEFINED ENV{MEMO_URL})
    vcpkg_from_git(OUT_SOURCE_PATH SOURCE_PATH URL "$ENV{MEMO_URL}" FETCH_REF "v${VERSION}" HEAD_REF main)
else()
    get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
endif()
set(VCPKG_BUILD_TYPE release) # headers alone
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}")
vcpkg_cmake_install()
vcpkg_fixup_pkgconfig()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
