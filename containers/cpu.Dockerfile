# A machine without GPUs. This project has not built it. In the folder of README:
#   docker build --file containers/cpu.Dockerfile --tag portagpu-cpu .
#   docker run --rm --shm-size 2g portagpu-cpu bringup
FROM python:3.12-slim-bookworm
COPY . /src
# the constraints have the versions with which the checks last passed
RUN python3 -m pip install --no-cache-dir --constraint /src/constraints.txt "/src[torch,conform]"
USER 1000
WORKDIR /tmp
ENTRYPOINT ["portagpu"]
CMD ["--help"]
