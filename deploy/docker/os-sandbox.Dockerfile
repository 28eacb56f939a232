# What the `os` environment's Docker backend runs each session in: the programs that AgentBench's tasks use.
# No server code is in it. The backend itself needs bash and python3.
ARG BASE_IMAGE=debian:12-slim
FROM ${BASE_IMAGE}

RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        bc bsdextrautils bzip2 cron curl dc file findutils gawk git iproute2 less lsof make nano procps psmisc \
        python-is-python3 python3 python3-pip sudo time tree tzdata unzip vim-tiny wget xxd xz-utils zip \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin

WORKDIR /root
CMD ["bash"]
