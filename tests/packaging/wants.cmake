find_package(tessella ${WANTED} REQUIRED)
