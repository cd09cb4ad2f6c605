#!/usr/bin/env bash
# Several hosts on one machine, by namespaces; needs root. HOSTS_NET is their network: 10.HOSTS_NET.0.1 is the first one's address.
#   up N [RATE]     each with a network, host name, processes, IPC and /dev/shm of its own, on the bridge hostsHOSTS_NET; RATE (200mbit)
#                   limits each link both ways, by token buckets of 256 KiB
#   down            remove them, with all that runs there
#   HOST CMD...     as rsh: run a command on the host with this address
set -euo pipefail
case "${1:-}" in
up)
  net=$HOSTS_NET rate=${3:-}
  mkdir -p "/run/hosts$net"
  ip link add "hosts$net" type bridge
  ip addr add "10.$net.0.254/24" dev "hosts$net"
  ip link set "hosts$net" up
  for i in $(seq 1 "$2"); do
    space="hosts$net-$i"
    ip netns add "$space"
    ip link add "h$net-$i" type veth peer name eth0 netns "$space"
    ip link set "h$net-$i" master "hosts$net" up
    ip netns exec "$space" ip addr add "10.$net.0.$i/24" dev eth0
    ip netns exec "$space" ip link set eth0 up
    ip netns exec "$space" ip link set lo up
    if [ -n "$rate" ]; then
      ip netns exec "$space" tc qdisc add dev eth0 root tbf rate "$rate" burst 256kb limit 8mb
      tc qdisc add dev "h$net-$i" root tbf rate "$rate" burst 256kb limit 8mb
    fi
    setsid ip netns exec "$space" unshare --uts --ipc --pid --mount --fork --mount-proc --kill-child bash -c \
      'hostname "host$0"; mount -t tmpfs tmpfs /dev/shm; exec sleep infinity' "$i" </dev/null >/dev/null 2>&1 &
    holder=$! child=
    while [ -z "$child" ]; do sleep 0.1; child=$(pgrep -P "$holder" -x sleep || true); done
    echo "$child $holder" >"/run/hosts$net/$i"
  done ;;
down)
  net=$HOSTS_NET
  for file in "/run/hosts$net"/*; do
    [ -e "$file" ] || continue
    read -r _ holder <"$file"
    kill -9 "$holder" 2>/dev/null || true
  done
  rm -rf "/run/hosts$net"
  sleep 0.3
  for space in $(ip netns list | awk '{print $1}' | grep "^hosts$net-" || true); do ip netns del "$space"; done
  ip link del "hosts$net" 2>/dev/null || true ;;
*)
  while [[ ${1:-} == -* ]]; do shift; done
  IFS=. read -r _ net _ i <<<"$1"
  shift
  read -r child _ <"/run/hosts$net/$i"
  # Process ids repeat from host to host, and files in /tmp that are named by them would meet.
  exec nsenter -t "$child" --net --uts --ipc --pid --mount --wd="$PWD" env TMPDIR=/dev/shm bash -c "$*" ;;
esac
