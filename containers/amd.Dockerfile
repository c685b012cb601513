# BASE is your image with a ROCm build of torch, such as rocm/pytorch with the ROCm of your driver.
# This project has not built it. In the folder of README:
#   docker build --file containers/amd.Dockerfile --build-arg BASE=YOUR-IMAGE-WITH-TORCH --tag portagpu-amd .
#   docker run --rm --device /dev/kfd --device /dev/dri --group-add video --shm-size 8g portagpu-amd bringup
ARG BASE
FROM ${BASE}
COPY . /src
# pip keeps the torch that is there
RUN python3 -m pip install --no-cache-dir "/src[rocm]"
USER 1000
WORKDIR /tmp
ENTRYPOINT ["portagpu"]
CMD ["--help"]
