// Messages of rooms: who may send them, who gets them, and that none is lost with a connection or a replica.
import assert from 'node:assert/strict';
import { LONG, ask, drop, online, sleep, suite, waitFor } from './harness.mjs';
import { fine, join, leave, newRoom, peer, peers, refused } from './rooms.mjs';

const { scenario } = suite({ replicas: 3, flags: { 'emit-policy': 'mute-all=host,guest', 'peer-grace': '3s' } });

const emit = (socket, room, event, data, to) => ask(socket, 'room-emit', { room, event, ...(data !== undefined && { data }), ...(to && { to }) });
// got is what a client got of an event, in order.
const got = (socket, event) => socket.heard.filter((m) => m.event === event).map((m) => m.n);
async function gets(socket, event, want) {
  await waitFor(`${socket.peer} gets ${want.length} of ${event}`, () => got(socket, event).length >= want.length);
  assert.deepEqual(got(socket, event), want);
}

scenario('S2.22 the ambient-noise-alert is taken only from the present host of the room; others are refused, and that is logged', async (x) => {
  const id = newRoom();
  const { host, guest, member, monitor, outsider } = await peers(x, { host: 0, guest: 1, member: 2, monitor: 0, outsider: 1 });
  for (const c of [host, guest, member, monitor]) await join(c, id, c.peer);
  const alert = (c, n) => emit(c, id, 'ambient-noise-alert', { n }, 'guest');
  for (const c of [guest, member, monitor, outsider]) {
    const answer = await alert(c, 0);
    assert.equal(answer.code, 'FORBIDDEN', `${c.peer}: ${JSON.stringify(answer)}`);
    await waitFor('it is logged', () => x.cluster.replicas[c.at].log.split('\n').some((l) => l.includes('an event to a room was refused') && l.includes(`"peer":"${c.peer}"`) && l.includes(id)));
  }
  assert.equal((await alert(host, 1)).ok, true);
  await gets(guest, 'ambient-noise-alert', [1]);
  for (const c of [host, member, monitor]) assert.deepEqual(got(c, 'ambient-noise-alert'), [], 'it was for the guest');

  // S2.23 the authority follows the identity: over a broken connection, and into a new session.
  drop(host);
  await waitFor('the host is back', () => host.ends.length && host.connected);
  assert.equal((await alert(host, 2)).ok, true);
  const page = await peer(x, 1, 'host');
  assert.equal((await alert(page, 3)).ok, true);
  await gets(guest, 'ambient-noise-alert', [1, 2, 3]);
  // And it ends with the role, at once.
  await join(page, id, 'member');
  assert.equal((await alert(page, 4)).code, 'FORBIDDEN');
  await join(member, id, 'host');
  assert.equal((await alert(member, 5)).ok, true);
  await gets(guest, 'ambient-noise-alert', [1, 2, 3, 5]);
});

scenario('roles and policies: who may send what, and what nobody may', async (x) => {
  const id = newRoom();
  const all = await peers(x, { host: 0, guest: 1, member: 2, monitor: 0, outsider: 1 });
  for (const role of ['host', 'guest', 'member', 'monitor']) await join(all[role], id, role);
  const may = { chat: ['host', 'guest', 'member'], 'mute-all': ['host', 'guest'], 'ambient-noise-alert': ['host'] };
  for (const [event, roles] of Object.entries(may)) {
    for (const [who, c] of Object.entries(all)) {
      const answer = await emit(c, id, event, { n: 1 });
      assert.equal(answer.ok || answer.code, roles.includes(who) || 'FORBIDDEN', `${event} of ${who}`);
      if (answer.ok) assert.match(answer.offset, /./);
    }
  }
  for (const event of [undefined, '', 5, 'peer-left', 'room-closed', 'rpc-request', 'connect', 'x'.repeat(257)]) {
    await refused('BAD_REQUEST', all.host, 'room-emit', { room: id, event, data: { n: 9 } });
  }
  for (const to of [5, {}, []]) await refused('BAD_REQUEST', all.host, 'room-emit', { room: id, event: 'chat', to });
  await leave(all.member, id);
  assert.equal((await emit(all.member, id, 'chat', { n: 2 })).code, 'FORBIDDEN');
  await gets(all.monitor, 'chat', [1, 1, 1]);
  await gets(all.host, 'mute-all', [1, 1]);
  assert.deepEqual(got(all.outsider, 'chat'), []);
});

scenario('to everybody, to a role, to a peer: in one order for all, from the moment of joining to that of leaving', async (x) => {
  const id = newRoom();
  const elsewhere = newRoom();
  const { host, a, b, late } = await peers(x, { host: 0, a: 1, b: 2, late: 1 });
  await join(host, id, 'host');
  await join(a, id, 'member');
  await join(b, id, 'guest');
  await Promise.all([0, 1, 2].map((n) => emit([host, a, b][n], id, 'to-all', { n })));
  await waitFor('all have all', () => [host, a, b].every((c) => got(c, 'to-all').length === 3));
  for (const c of [a, b]) assert.deepEqual(got(c, 'to-all'), got(host, 'to-all'), 'one order');
  await emit(host, id, 'one', { n: 1 }, 'a');
  await emit(host, id, 'one', { n: 2 }, 'member');
  await emit(host, id, 'one', { n: 3 }, 'nobody');
  await emit(host, id, 'one', { n: 4 }, 'host');
  await gets(a, 'one', [1, 2]);
  await gets(host, 'one', [4]);
  assert.deepEqual(got(b, 'one'), []);
  // Whoever's join is acknowledged gets what is sent from then on, through whatever replica.
  for (let n = 10; n < 30; n++) {
    await join(late, id, 'member');
    await emit(host, id, 'later', { n });
    await gets(late, 'later', [...Array(n - 9).keys()].map((k) => k + 10));
    await leave(late, id);
    await emit(host, id, 'gone', { n });
  }
  // One that moves gets nothing more of the room that it left.
  await join(b, elsewhere, 'guest');
  await emit(host, id, 'moved', { n: 99 });
  await join(host, elsewhere, 'host');
  await emit(host, elsewhere, 'there', { n: 1 });
  await gets(b, 'there', [1]);
  assert.deepEqual(got(late, 'gone'), [], 'it had left');
  assert.deepEqual(got(b, 'moved'), [], 'it had moved');
});

scenario('a peer that is back has the room\'s messages: those it missed if it is recovered, what comes if its session is new', async (x) => {
  const id = newRoom();
  const { host, a } = await peers(x, { host: 0, a: 1 });
  await join(host, id, 'host');
  await join(a, id, 'member');
  let n = 0;
  for (let round = 0; round < 3; round++) {
    a.io.reconnection(false);
    drop(a);
    await waitFor('it is away', () => !a.connected);
    for (let k = 0; k < 3; k++) await emit(host, id, 'tick', { n: ++n });
    await emit(host, id, 'tick', { n: 1000 }, 'host'); // not for it
    a.io.reconnection(true);
    a.connect();
    await online(a);
    assert.equal(a.recovered, true);
    await gets(a, 'tick', [...Array(n).keys()].map((k) => k + 1));
  }
  const page = await peer(x, 2, 'a'); // the same peer anew: its place is its own, without joining
  await emit(host, id, 'tick', { n: ++n });
  await gets(page, 'tick', [n]);
});

scenario('replicas are killed and started again at random under steady messages to a room: nothing is lost, doubled or out of order', async (x) => {
  const id = newRoom();
  const [clients, seconds] = LONG ? [50, 60] : [20, 12];
  const all = await Promise.all([...Array(clients).keys()].map((i) => peer(x, i % 3, `p${i}`)));
  await Promise.all(all.map((c) => join(c, id, 'member')));
  const sent = [];
  let going = true;
  const killer = (async () => {
    while (going) {
      await sleep(1500);
      const victim = x.cluster.replicas[Math.floor(Math.random() * 3)];
      await victim.kill();
      await sleep(500 + Math.random() * 1000);
      await victim.again();
    }
  })();
  const speaker = await peer(x, 0, 'speaker');
  await join(speaker, id, 'member');
  const doubtful = new Set();
  const end = Date.now() + seconds * 1000;
  for (let n = 0; Date.now() < end; n++) {
    await online(speaker);
    const answer = await emit(speaker, id, 'tick', { n });
    if (answer.ok) sent.push(n); else doubtful.add(n); // its connection was lost before the answer
    await sleep(50);
  }
  going = false;
  await killer;
  await waitFor('everybody is back', () => [...all, speaker].every((c) => c.connected));
  // After the last of those that were not answered, too: what came of them is at all or at none when this one has come.
  assert.ok((await emit(speaker, id, 'tick', { n: -1 })).ok);
  sent.push(-1);
  await waitFor('everybody has the last one', () => all.every((c) => got(c, 'tick').includes(-1)), 20_000);
  const first = got(all[0], 'tick');
  for (const c of all) {
    const have = got(c, 'tick');
    assert.deepEqual(sent.filter((n) => !have.includes(n)), [], `${c.peer} misses some of ${sent.length}`);
    assert.equal(new Set(have).size, have.length, `${c.peer} has some twice`);
    assert.deepEqual(have, first, `${c.peer} has another order`);
    assert.ok(have.every((n) => sent.includes(n) || doubtful.has(n)));
  }
  assert.ok(sent.length > seconds * 5, `${sent.length} sent`);
  x.t.diagnostic(`${sent.length} messages, ${doubtful.size} without an answer, ${all.reduce((n, c) => n + c.ends.length, 0)} connections lost`);
});
