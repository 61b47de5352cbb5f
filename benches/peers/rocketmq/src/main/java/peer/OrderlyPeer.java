package peer;

import java.lang.management.ManagementFactory;
import java.util.BitSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The Java client's orderly consumer, to be compared with Keylane on the same broker and topic, and
 * to be a member of the same group. Prints one JSON object.
 *
 * <p>Arguments: NAME_SERVER TOPIC GROUP MESSAGES THREADS WORK_MICROS SECONDS. It ends when it has
 * got so many different messages, or after so many seconds.
 */
public final class OrderlyPeer {
  /** The offsets of each queue that have succeeded. */
  private final Map<String, BitSet> done = new ConcurrentHashMap<>();
  /** The highest offset of each key in each queue. */
  private final Map<String, Long> keys = new ConcurrentHashMap<>();
  private final AtomicLong delivered = new AtomicLong();
  private final AtomicLong duplicates = new AtomicLong();
  private final AtomicLong outOfOrder = new AtomicLong();
  private final AtomicLong first = new AtomicLong();
  private final AtomicLong last = new AtomicLong();

  public static void main(String[] args) throws Exception {
    if (args.length != 7) {
      System.err.println(
          "wanted: NAME_SERVER TOPIC GROUP MESSAGES THREADS WORK_MICROS SECONDS");
      System.exit(2);
    }
    new OrderlyPeer().run(args);
  }

  private void run(String[] args) throws Exception {
    long messages = Long.parseLong(args[3]);
    int threads = Integer.parseInt(args[4]);
    long workNanos = TimeUnit.MICROSECONDS.toNanos(Long.parseLong(args[5]));
    CountDownLatch all = new CountDownLatch(1);
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
    consumer.setNamesrvAddr(args[0]);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.setConsumeThreadMin(threads);
    consumer.setConsumeThreadMax(threads);
    consumer.setConsumeMessageBatchMaxSize(1);
    consumer.setPullBatchSize(1024);
    consumer.subscribe(args[1], "*");
    consumer.registerMessageListener(
        (MessageListenerOrderly)
            (batch, context) -> {
              for (MessageExt message : batch) {
                if (workNanos > 0) {
                  sleep(workNanos);
                }
                note(message);
              }
              if (delivered.get() >= messages) {
                all.countDown();
              }
              return ConsumeOrderlyStatus.SUCCESS;
            });
    double cpuBefore = cpuSeconds();
    consumer.start();
    all.await(Long.parseLong(args[6]), TimeUnit.SECONDS);
    double cpu = cpuSeconds() - cpuBefore;
    double elapsed = Math.max(0, last.get() - first.get()) / 1e9;
    System.out.printf(
        Locale.ROOT,
        "{\"delivered\":%d,\"elapsed_s\":%.6f,\"order_violations\":%d,\"duplicates\":%d,"
            + "\"cpu_s\":%.2f,\"queues\":%s}%n",
        delivered.get(), elapsed, outOfOrder.get(), duplicates.get(), cpu, queues(consumer));
    consumer.shutdown();
    System.exit(0);
  }

  /** A message was handled. */
  private void note(MessageExt message) {
    long now = System.nanoTime();
    first.compareAndSet(0, now);
    String queue = message.getBrokerName() + "/" + message.getQueueId();
    int offset = Math.toIntExact(message.getQueueOffset());
    BitSet seen = done.computeIfAbsent(queue, name -> new BitSet());
    synchronized (seen) {
      if (seen.get(offset)) {
        duplicates.incrementAndGet();
        return;
      }
      seen.set(offset);
    }
    Long before = keys.put(queue + "/" + message.getKeys(), message.getQueueOffset());
    if (before != null && before > message.getQueueOffset()) {
      outOfOrder.incrementAndGet();
    }
    delivered.incrementAndGet();
    last.set(now);
  }

  /** The numbers of the queues that messages came from, and those that are this member's now. */
  private static String queues(DefaultMQPushConsumer consumer) {
    TreeSet<Integer> own = new TreeSet<>();
    consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()
        .stream()
        .filter(queue -> !queue.getTopic().startsWith("%"))
        .forEach(queue -> own.add(queue.getQueueId()));
    return List.copyOf(own).toString();
  }

  private static void sleep(long nanos) {
    try {
      TimeUnit.NANOSECONDS.sleep(nanos);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private static double cpuSeconds() {
    var system = (com.sun.management.OperatingSystemMXBean)
        ManagementFactory.getOperatingSystemMXBean();
    return system.getProcessCpuTime() / 1e9;
  }
}
