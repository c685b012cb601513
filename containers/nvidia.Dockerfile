# BASE is your image with a CUDA build of torch, such as pytorch/pytorch with the CUDA of your driver.
# This project has not built it. In the folder of README:
#   docker build --file containers/nvidia.Dockerfile --build-arg BASE=YOUR-IMAGE-WITH-TORCH --tag portagpu-nvidia .
#   docker run --rm --gpus all --shm-size 8g portagpu-nvidia bringup
ARG BASE
FROM ${BASE}
COPY . /src
# pip keeps the torch that is there
RUN python3 -m pip install --no-cache-dir "/src[cuda]"
USER 1000
WORKDIR /tmp
ENTRYPOINT ["portagpu"]
CMD ["--help"]
